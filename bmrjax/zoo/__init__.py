"""Networks of papers, some in the layouts of other libraries.

Nothing in the library but the command line knows them by name: networks of your own are treated alike.
Modules are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
