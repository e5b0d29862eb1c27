"""Put the committed result tables into docs/results.md, between their markers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Rewrite each ``<!-- table: NAME -->`` block from ``benchmarks/results/NAME/table.md``."""

    def fill(match: re.Match) -> str:
        table = (ROOT / "benchmarks" / "results" / match["name"] / "table.md").read_text()
        return f"<!-- table: {match['name']} -->\n{table}<!-- end -->"

    pattern = r"<!-- table: (?P<name>[\w/]+) -->\n.*?<!-- end -->"
    page = ROOT / "docs" / "results.md"
    page.write_text(re.sub(pattern, fill, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
