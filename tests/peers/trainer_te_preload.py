"""trainer_preload.py for models whose modules are Transformer Engine's."""

import te_package

te_package.VERSION = "2.14.0"  # since this one, experts may have one weight
te_package.install()

import trainer_preload  # noqa: E402,F401
