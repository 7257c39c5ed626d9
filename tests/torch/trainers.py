"""Runs training loops of others, those of docs/training among them, on a small dataset.

`python -m tests.torch.trainers JOBS` runs a JSON list of jobs one after another, each in forked processes, so
that lightning, transformers and torch are imported once. The ranks of a job meet as those of torchrun do, and
when one has died the others are killed. Every rank writes what its model saw to `OUT-RANK`, one JSON line of
records a step; the exit codes are printed as a JSON object by the names of the jobs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.servers.processes import held_port
from tests.suites.pages import code_of

ROOT = Path(__file__).parents[2]
# Where the code for a trainer is: the page in docs/training and the heading of the section.
SECTIONS = {
    "Lightning": "torchrun",
    "torchdata": "torchrun",
    "Trainer": "transformers",
    "accelerate": "transformers",
}


def section_of(heading, url):
    """Return the code for a trainer, for a small dataset and with a checkpoint every third step."""
    small = {"s3://bucket/birds": url, "global_batch=256": "global_batch=10", "100": "3"}
    return code_of(f"training/{SECTIONS[heading]}.md", heading, **small)


def train(job, write):
    """Run the code of a page until the model is called for the `kill`-th time, or to its end."""
    names = {"__name__": "page"}
    exec(compile(section_of(job["page"], job["url"]), job["page"], "exec"), names)
    model = names["Classifier"]
    forward = model.forward
    calls = 0

    def recording(self, x, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == job.get("kill"):
            os._exit(9)
        write(x[:, 0].long().tolist())
        return forward(self, x, *args, **kwargs)

    model.forward = recording
    names["fit"](job["folder"], **job["fit"])


def tiny_model():
    """Return a language model and its tokenizer: a word is its number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {f"{n}": n for n in range(100)} | {"<pad>": 100, "</s>": 101}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=102, num_key_value_heads=1, **sizes))
    special = {"pad_token": "<pad>", "eos_token": "</s>"}
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def fine_tune(job, write):
    """Run the section on TRL; the model's embedding notes what it is given."""
    names = {"__name__": "page"}
    code = code_of("training/transformers.md", "TRL", **{"s3://bucket/texts": job["url"]})
    exec(compile(code, "TRL", "exec"), names)
    model, tokenizer = tiny_model()
    calls = 0

    def note(module, arguments):
        nonlocal calls
        calls += 1
        if calls == job.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        write(arguments[0][:, 0].tolist())

    model.get_input_embeddings().register_forward_pre_hook(note)
    names["fit"](model, tokenizer, job["folder"], **job["fit"])


def stateful(job, write):
    """Train from a dataset of Hugging Face by accelerate's own loaders, saving every third step."""
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    from torch.utils.data import DataLoader

    import shardio

    options = {"use_stateful_dataloader": job["how"] == "state", "dispatch_batches": False}
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**options))
    hub = shardio.open(job["url"]).to_hf(["n"], streaming=True, seed=0)
    loader = accelerator.prepare(DataLoader(hub.with_format("torch"), batch_size=5))
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    folder = Path(job["folder"])
    if job.get("resume") and job["how"] == "state":
        accelerator.load_state(folder)
    batches = skip_first_batches(loader, job["skip"]) if "skip" in job else loader
    for step, batch in enumerate(batches):
        if step == job.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        write(batch["n"].tolist())
        accelerator.backward(model(batch["n"][:, None].float()).mean())  # no rank is ahead of another
        if step % 3 == 2 and job["how"] == "state" and not job.get("resume"):
            accelerator.save_state(folder)
            accelerator.wait_for_everyone()


def prepared(job, loader_of):
    """Return what accelerate makes of a loader over a new `StreamingDataset`."""
    from accelerate import Accelerator

    import shardio
    from shardio.torch import StreamingDataset

    accelerator = Accelerator()
    return accelerator.prepare(loader_of(StreamingDataset(shardio.open(job["url"]), global_batch=10, seed=0)))


def skip_first(job, write):
    """Take the second epoch without its first batches, then the third one whole."""
    from accelerate import skip_first_batches

    from shardio.torch import StreamingDataLoader

    loader = prepared(job, StreamingDataLoader)
    loader.set_epoch(1)
    for batch in skip_first_batches(loader, job["skip"]):
        write(batch["x"][:, 0].long().tolist())
    loader.set_epoch(2)
    for batch in loader:
        write(batch["x"][:, 0].long().tolist())


def plain_evaluation(job, write):
    """Evaluate in Lightning with a loader of torch's own, within a fit and alone."""
    import lightning
    from torch.utils.data import DataLoader

    import shardio
    from shardio.torch import StreamingDataset

    names = {"__name__": "page"}
    exec(section_of("Lightning", job["url"]), names)

    def note(self, batch, index):
        write(batch["x"][:, 0].long().tolist())
        return self(batch["x"]).sum()

    model_type = names["Classifier"]
    for hook in ("validation_step", "test_step", "predict_step"):
        setattr(model_type, hook, note)
    data = StreamingDataset(shardio.open(job["url"]), global_batch=10, shuffle=False, remainder="keep")
    plain = DataLoader(data, batch_size=None, num_workers=job["workers"])
    trainer, model = lightning.Trainer(max_epochs=2, num_sanity_val_steps=0, **job["fit"]), model_type()
    trainer.fit(model, val_dataloaders=plain)
    for evaluate in (trainer.validate, trainer.test, trainer.predict):
        evaluate(model, plain)


def in_child(job, rank, world_size, port):
    """Run one rank of a job, in a forked process."""
    Path(job["folder"]).parent.mkdir(exist_ok=True)
    out = Path(f"{job['out']}-{rank}").open("w", buffering=1, encoding="utf-8")  # noqa: SIM115
    if world_size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none",
        }
    works = {
        "train": train,
        "skip_first": skip_first,
        "plain_evaluation": plain_evaluation,
        "fine_tune": fine_tune,
        "stateful": stateful,
    }
    work = works[job.get("work", "train")]
    work(job, lambda what: out.write(json.dumps(what) + "\n"))
    out.flush()


def fork(job, rank, world_size, port):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        in_child(job, rank, world_size, port)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reads the code, and people the traceback
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(job):
    """Run a job and return the exit codes of its ranks; 9 after a kill."""
    world_size = job.get("world_size", 1)
    codes = [0] * world_size
    deadline = time.monotonic() + job.get("seconds", 500)
    with held_port() as port:
        waiting = {fork(job, rank, world_size, port): rank for rank in range(world_size)}
        while waiting:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                codes[waiting.pop(child)] = abs(os.waitstatus_to_exitcode(status))
            if any(codes) or time.monotonic() > deadline:
                for other in waiting:
                    os.kill(other, signal.SIGKILL)
            if not child:
                time.sleep(0.01)
    return codes


def run_all(jobs, seconds=850):
    """Run jobs in one program, which imports the trainers once; return what each rank saw, by job."""
    quiet = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.torch.trainers", json.dumps(jobs)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **quiet, "PYTHONWARNINGS": "ignore"}, check=False,
        capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    codes, found = json.loads(done.stdout.splitlines()[-1]), {}
    for job in jobs:
        assert any(codes[job["name"]]) == ("kill" in job), (job["name"], codes, done.stderr[-3000:])
        found[job["name"]] = [
            [json.loads(line) for line in Path(f"{job['out']}-{rank}").read_text("utf-8").splitlines()]
            for rank in range(job.get("world_size", 1))
        ]
    return found


def main(jobs):
    warnings.simplefilter("ignore")
    import accelerate  # noqa: F401
    import torchdata.stateful_dataloader  # noqa: F401
    import transformers.trainer  # noqa: F401

    if any(job.get("work") == "fine_tune" for job in jobs):
        import trl.trainer.sft_trainer  # noqa: F401
    else:
        import lightning  # noqa: F401

    print(json.dumps({job["name"]: run(job) for job in jobs}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
