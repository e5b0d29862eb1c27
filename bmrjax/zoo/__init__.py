"""Networks of papers and of other libraries, and signals to try them on.

Nothing in the library knows them by name but the command line and the data sets: networks of your own are
treated alike. Modules are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
