"""Runs the code of a page of docs/training on a small dataset, until it is killed or comes to its end.

`python -m tests.torch.trainers TASK`, with a JSON object of `page`, `url`, `folder`, `out`, `kill`
and `fit`, writes the records of every batch that the model saw, one JSON line a step, to `out-<rank>`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "training"


def code_of(page, url):
    """Return the code of a page, for a small dataset and with a checkpoint every third step."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for long, short in (
        ("s3://bucket/birds", url),
        ("global_batch=256", "global_batch=10"),
        ("1000", "3"),
    ):
        assert long in code, long
        code = code.replace(long, short)
    return code


def main(task):
    warnings.simplefilter("ignore")
    names = {"__name__": "page"}
    exec(compile(code_of(task["page"], task["url"]), task["page"], "exec"), names)
    model = names["Classifier"]
    forward = model.forward
    out = Path(f"{task['out']}-{os.environ.get('LOCAL_RANK', '0')}").open("w", buffering=1)  # noqa: SIM115
    calls = 0

    def recording(self, x, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == task["kill"]:
            os._exit(9)
        out.write(json.dumps(x[:, 0].long().tolist()) + "\n")
        return forward(self, x, *args, **kwargs)

    model.forward = recording
    names["fit"](task["folder"], **task["fit"])
    out.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
