"""What descriptions of networks are compressed with: text that they are likely to repeat.

The text was made from descriptions of common networks, and knows none that came later; a network that is not
in it takes some hundred bytes more. It is a part of the format: another dictionary is another version.
"""

from pathlib import Path

PHRASES = Path(__file__).with_suffix(".txt").read_bytes()
