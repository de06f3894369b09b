"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. See docs/reference/drop-ins.md."""

from functools import partial

from app.api.components import Components
from app.api.feature import Feature, Part, PeriodicTask
from app.features import transfers
from app.features.one_time import SeenSignatures
from app.features.rekognition.routes import router
from app.features.rekognition.wire import REKOGNITION, SignatureChecker


def _start(core: Components) -> Part:
    checker, seen = SignatureChecker(core.keys, core.guard), SeenSignatures(core.store.database)
    prune = partial(transfers.prune_answers, core.store.database)
    tasks = [PeriodicTask(transfers.PRUNE_ANSWERS_S, "answers to tokens", prune)]
    return Part({"signature_checker": checker, "seen_signatures": seen}, tasks=tasks)


FEATURE = Feature([router], _start, setting="rekognition", wire=REKOGNITION)
