"""DeepStack's face interface, which CodeProject.AI uses too. docs/how-to/move-from-deepstack.md lists the
differences."""

from app.api.feature import Feature
from app.features.deepstack.routes import router
from app.features.deepstack.wire import DEEPSTACK

FEATURE = Feature([router], setting="deepstack", wire=DEEPSTACK)
