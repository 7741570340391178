"""A gate without the record that a call has begun: the control of the tests that kill gates."""

from __future__ import annotations

import asyncio
import json
import sys

from runner.doors import gate
from runner.doors.gated_call import GateNode

saved = GateNode._saved


def forgetful(self, questions, *, begun=False):
    del begun
    return saved(self, questions)


GateNode._saved = forgetful

asyncio.run(gate.serve(json.loads(sys.argv[1])))
