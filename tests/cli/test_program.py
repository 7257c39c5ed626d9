"""The program around the commands: help, exit codes, endings, and what reaches the terminal."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from shardio import errors, kernels
from shardio.cli import main
from shardio.cli._commands import ALIASES, COMMANDS
from shardio.cli._console import explain
from shardio.cli._main import make_app
from shardio.cli._options import typed_parameters
from tests.cli.conftest import Run, shard_of

ROOT = Path(shardio.__file__).parent.parent
PAGES = Path(__file__).parents[2]  # beside the tests, also where shardio is installed from a wheel
NAMES = [name for name in COMMANDS if name not in ALIASES.values()]


def test_help_lists_every_command(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert run("-h") == ended
    for name in NAMES:
        assert name in ended.out.split()
    assert "exit codes: 0 clean, 1 damage" in ended.out
    assert run("--version").out == f"shardio {shardio.__version__}\n"


def examples_of(name: str) -> list[str]:
    """Return the command lines that the help of a command shows."""
    lines = make_app()[name].help_epilogue.splitlines()
    return [line.strip() for line in lines if "shardio" in line and line.startswith("  ") and line[2] != " "]


def choices_of(name: str, argument: str) -> tuple[str, ...]:
    arguments = make_app()[name].assemble_argument_collection()
    (found,) = (each.get_choices() for each in arguments if each.field_info.name == argument)
    return found or ()


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_commands_on_pages_parse() -> None:
    """What pages show to type has the names, options and choices that there are."""
    seen = 0
    written = {*(PAGES / "docs").rglob("*.md")} - {PAGES / "docs/options.md"}  # made from the commands
    for page in [PAGES / "README.md", *written]:
        blocks = [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind != "python"]
        for line in re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if "shardio " in line else [""]
            if words[:1] != ["shardio"]:
                continue
            end = min((words.index(mark) for mark in ("|", ">", ">>") if mark in words), default=len(words))
            name, *arguments = [word.replace("$endpoint", "key=value") for word in words[1:end]]
            make_app().parse_args([name, *arguments], exit_on_error=False, print_error=False)
            seen += 1
    assert seen > 30


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_json_and_examples_that_parse(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = run(name, "--help")
    assert ended.code == 0
    assert run(name, "-h") == ended
    assert "--json" in ended.out
    assert examples_of(name)
    for line in examples_of(name):
        assert line.removeprefix("pipe:").startswith(f"shardio {name} ")


@pytest.mark.parametrize(("name", "kinds"), [("convert", "source_kinds"), ("export", "target_kinds")])
def test_help_lists_the_kinds_that_there_are(
    run: Run, name: str, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    choices = getattr(importlib.import_module("shardio.convert"), kinds)()
    assert f"[choices: {', '.join(choices)}]" in run(name, "--help").out


# What the functions take and a command line does not: what only Python has, or what the command gives itself.
NOT_TYPED = {
    "commit": set(),
    "compact": set(),
    "convert": {"splits", "options"},  # whose entries are options of the command
    "delete": {"features", "keys"},  # --key
    "diff": set(),
    "export": set(),
    "gc": set(),
    "pack": {"splits"},
    "repair": set(),
    "restore": set(),
    "table": set(),
    "keys": set(),
    "verify": {"limits"},
}
FUNCTIONS = {"convert": "convert_dataset", "export": "export_dataset", "pack": "pack_dataset"}
FUNCTIONS |= {"table": "build_table", "keys": "build_keys"}


@pytest.mark.parametrize("name", NOT_TYPED)
def test_every_argument_of_a_function_can_be_typed(name: str) -> None:
    """A new argument is an option of its command; one that only Python has is named above."""
    function = getattr(shardio, FUNCTIONS.get(name, name))
    lost = set(typed_parameters(function)) - set(flags_of(name)) - {"progress", "executor"}
    assert lost == NOT_TYPED[name]


def flags_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the flags of a command by the name of their argument, beginning with what help shows."""
    arguments = make_app()[name].assemble_argument_collection()
    return {each.field_info.name: tuple(each.names) for each in arguments}


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_the_name_of_its_argument_too(name: str) -> None:
    """So what a message of the library says of an argument can be typed."""
    for argument, flags in flags_of(name).items():
        assert not flags[0].startswith("-") or f"--{argument.replace('_', '-')}" in flags


@pytest.mark.parametrize("name", NAMES)
def test_help_speaks_as_a_shell_does(name: str) -> None:
    """What docstrings say of an argument is shown as it would be said of an option."""
    known = {flag for flags in flags_of(name).values() for flag in flags}
    for argument in make_app()[name].assemble_argument_collection():
        text = argument.parameter.help
        assert text, argument.name
        assert not re.search(r"\b(None|True|False|default: .*default: )\b", text), (argument.name, text)
        assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known, (argument.name, text)


def test_choices_are_those_of_the_library(run: Run, plain: Path, tmp_path: Path) -> None:
    for mixing in choices_of("plan", "mixing"):
        assert shardio.StreamOptions(global_batch=4, mixing=mixing).mixing == mixing
    for encoding in choices_of("adopt", "encoding"):
        schema: dict[str, object] = {"value": "int64"}
        if encoding in ("sequence_example", "bytes"):
            schema = {"context": {}, "feature_lists": {}} if encoding != "bytes" else {"value": "bytes"}
        assert shardio.Schema.parse(schema, encoding=encoding).encoding.startswith(encoding)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["info"],
        ["info", "x", "--system"],
        ["get", "x"],
        ["get", "x", "1", "--where", "label = 3"],
        ["get", "x", "one"],
        ["commit", "x"],
        ["head", "x", "--storage-option", "novalue"],
        ["head", "x", "-n", "-1"],
        ["head", "--anon", "/local"],
        ["log", "x", "-n", "0"],
        ["gc", "x", "--keep"],
        ["verify", "x", "--version", "new version"],
        ["cache", "burn", "x"],
    ],
    ids=" ".join,
)
def test_usage_is_2(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert "shardio" in ended.err


def test_usage_errors_name_the_nearest_and_are_json_for_programs(run: Run) -> None:
    for arguments, hint in (
        (["hed", "x"], "head"),
        (["head", "x", "--splt", "train"], "--split"),
        (["export", "x", "y", "--kind", "jsonlines"], "jsonl"),
        (["export", "x", "y", "--kind"], "--kind"),
    ):
        ended = run(*arguments)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert hint in ended.err
        failure = json.loads(run(arguments[0], "--json", *arguments[1:]).err)
        assert hint in failure["error"]
        assert (failure["exit_code"], failure["kind"]) == (2, "UsageError")


def test_numbers_below_zero_are_positions_and_options_keep_their_values(run: Run, plain: Path) -> None:
    records = run("get", plain, 3, -1, "--version", 1, 0, "--json").document["records"]
    assert [record["position"] for record in records] == [3, 9, 0]
    assert "there is no version -1" in run("get", plain, -1, "--version", -1).err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.slow
def test_shells_complete_commands_and_options(run: Run, shell: str) -> None:
    script = run("completion", shell).out
    assert script == run("completion", shell, "--json").document["script"] + "\n" * (shell == "none")
    assert {"verify", "--split", "--storage-option"} <= set(
        re.findall(r"[\w-]+", script)
    ) or "split" in script


def test_bash_completes_with_the_script(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").out, encoding="utf-8")
    for words, expected in ((["shardio", "ver"], "verify"), (["shardio", "head", "x", "--spl"], "--split")):
        line = (
            f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
            '_shardio; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=60)
        assert expected in done.stdout.split()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FormatError("x"), 1),
        (errors.CorruptBlockError("x"), 1),
        (errors.CorruptRecordError("x"), 1),
        (errors.StaleIndexError("x"), 1),
        (errors.SchemaError("x"), 1),
        (errors.NotFoundError("a shard is gone", shard="data/x"), 1),
        (errors.UnsafeNameError("x", url="/ds"), 1),
        (errors.UnsafeNameError("x"), 2),
        (ValueError("x"), 2),
        (TypeError("x"), 2),
        (IndexError("x"), 2),
        (errors.UnsupportedVersionError("x"), 3),
        (errors.NotFoundError("x"), 3),
        (errors.StorageError("x"), 3),
        (errors.CommitConflictError("x"), 3),
        (errors.CommitOutcomeUnknownError("x"), 3),
        (errors.ResumeError("x"), 3),
        (ModuleNotFoundError("no module", name="s3fs"), 3),
        (OSError(28, "full"), 3),
        (MemoryError(), 3),
        (KeyError("a bug"), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_an_error_means(error: Exception, code: int) -> None:
    failure = explain(error)
    assert failure.code == code
    assert failure.text
    assert "\n" not in failure.text


def test_an_error_is_one_line_and_debug_shows_where(run: Run, tmp_path: Path) -> None:
    ended = run("info", tmp_path / "absent")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("shardio: there is no shardio dataset here")
    ended = run("info", tmp_path / "absent", "--debug")
    assert "Traceback" in ended.err
    assert ended.code == 3


def test_an_error_for_programs(run: Run, birds: Path) -> None:
    shard = shard_of(birds, "test")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    ended = run("head", birds, "--split", "test", "--json")
    assert (ended.code, ended.out) == (1, "")
    failure = json.loads(ended.err)
    assert failure["kind"] == "CorruptBlockError"
    assert failure["exit_code"] == 1
    assert failure["url"] == str(shard)
    assert {"row", "start", "stop", "expected", "found", "advice"} <= set(failure)


def test_other_programs_become_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shardio x` runs `shardio-x`, the way git and cargo do."""
    other = tmp_path / "shardio-other"
    other.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/said"\nexit 7\n', encoding="utf-8")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main(["other", "a", "b c"]) == 7
    assert (tmp_path / "said").read_text(encoding="utf-8") == "a b c\n"


@pytest.mark.slow
def test_looking_at_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from shardio.cli import main; main(['--help'])\n"
        "heavy = {'torch', 'fsspec', 's3fs', 'zstandard', 'google.protobuf', 'PIL'} & set(sys.modules)\n"
        "sys.exit(','.join(heavy) or 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(birds: Path) -> None:
    """`shardio head | head` ends quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "shardio", "head", str(birds), "-n", "1000"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=600,
    )
    os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode == 141


def in_bash(line: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a shell does, with its redirections."""
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m shardio {line}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "closed", "wanted"),
    [
        ("info", ">&-", 0),
        ("head --split nosuch", "2>&-", 2),
        ("verify", "<&- >&- 2>&-", 0),
    ],
)
def test_streams_that_are_closed_change_no_exit_code(
    birds: Path, command: str, closed: str, wanted: int
) -> None:
    """Daemons start programs so; 1 would say that the data is damaged."""
    ended = in_bash(f"{command} {birds} {closed}")
    assert ended.returncode == wanted
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", ["--version", "info --system --json"])
def test_a_full_disk_for_what_is_printed(line: str) -> None:
    ended = in_bash(f"{line} > /dev/full")
    assert ended.returncode == 3
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left" in ended.stderr
    # The library prints help and versions by itself.
    assert ("what was printed is lost" in ended.stderr and "'stdout'" in ended.stderr) == ("info" in line)


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, run: Run, birds: Path) -> None:
    @functools.wraps(shardio.verify)
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shardio, "verify", interrupted, raising=False)
    ended = run("verify", birds)
    assert ended.code == 130
    assert ended.err == "interrupted\n"


@pytest.mark.slow
def test_a_real_ctrl_c() -> None:
    code = (
        "import functools, time, shardio\n"
        "slow = lambda *a, **k: (print('here', flush=True), time.sleep(60))\n"
        "shardio.verify = functools.wraps(shardio.verify)(slow)\n"
    )
    code += "import sys; from shardio.cli import main; sys.exit(main(['verify', 'x']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    with contextlib.closing(process.stdout):
        _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err == "interrupted\n"


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: object) -> tuple[int, str, str]:
    """Run a command where the streams have an encoding; return its exit code and what it printed."""
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding))
        code = main([str(argument) for argument in arguments])
        said = []
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            said.append(stream.buffer.getvalue().decode(encoding))
    return code, said[0], said[1]


def test_a_terminal_without_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"name": "text"}) as out:
        out.write({"name": "Zaunkönig 鷦鷯"})
    code, said, _ = printed(monkeypatch, "ascii", "head", tmp_path / "ds")
    assert code == 0
    assert "Zaunk\\xf6nig" in said


def test_no_control_character_reaches_the_terminal(run: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[31m\u202ered\x9b\r\n"
    with shardio.DatasetWriter(
        tmp_path / "ds", {"name": "text", "a\u202eb": "bytes"}, metadata={"note": evil}
    ) as out:
        out.write({"name": evil, "a\u202eb": evil.encode()})
    for arguments in (["info"], ["head"], ["get", 0], ["get", 0, "--raw"]):
        ended = run(arguments[0], tmp_path / "ds", *arguments[1:])
        assert ended.code == 0
        assert all(line.isprintable() for line in ended.out.split("\n")), arguments


@pytest.mark.parametrize("name", NAMES)
def test_every_example_fails_in_one_line_or_document(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What help shows is parsed; where nothing is there, the error is a line or JSON."""
    monkeypatch.chdir(tmp_path)
    for line in examples_of(name):
        arguments = [re.sub(r"^\w+://\S*", str(tmp_path / "none"), part) for part in shlex.split(line)[1:]]
        arguments = [part for part in arguments if part != "--json"]
        if (
            arguments[0] in ("completion", "cache")
            or {"--system", ">", "|"} & {*arguments}
            or line.startswith("pipe:")  # records alone, never a document
        ):
            continue
        plain, programs = run(*arguments), run(*arguments, "--json")
        assert plain.code == programs.code, line
        assert plain.code in (2, 3), plain
        assert (plain.out, programs.out) == ("", ""), line
        said = [each for each in plain.err.splitlines() if not each.startswith("note: ")]
        assert len(said) == 1, plain.err
        assert said[0].startswith("shardio: ")
        failure = json.loads(programs.err.splitlines()[-1])
        assert {"error", "kind", "exit_code"} <= failure.keys()
        assert failure["error"] in said[0]


@pytest.mark.slow
def test_colours_are_for_terminals_alone(birds: Path) -> None:
    """A pseudo-terminal gets them, a pipe does not, and NO_COLOR turns them off."""
    import pty

    for environment, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "shardio", "head", str(birds / "none")],
            env={
                **{k: v for k, v in os.environ.items() if k != "NO_COLOR"},
                "PYTHONPATH": str(ROOT),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        child.communicate(timeout=600)
        os.close(theirs)
        said = ""
        with contextlib.suppress(OSError):  # with which it ends
            while part := os.read(ours, 10_000):
                said += part.decode()
        os.close(ours)
        assert ("\x1b[" in said) is coloured
        assert "shardio:" in said


def test_roots_of_adopted_shards_are_reached_as_their_dataset_is():
    """Credentials do not go to another kind of storage."""
    from shardio.cli._command import Given

    roots = ["s3://theirs/x", "gs://theirs/x", "/data/x"]
    options = {"key": "secret"}
    typed = {"url": "s3://mine/ds", "storage_options": options, "allow_roots": roots}
    given = Given(typed, {})
    assert given.options(shardio.open)["allow_roots"] == {roots[0]: options, roots[1]: {}, roots[2]: {}}
    assert given.at("/data/ds").options(shardio.open)["allow_roots"] == {
        roots[0]: {},
        roots[1]: {},
        roots[2]: options,
    }
    # Of a source that is a dataset, and is reached by options of its own.
    source = Given({**typed, "source": "gs://theirs/ds"}, {"source_options": None})
    assert source.options(shardio.open)["allow_roots"] == {root: {} for root in roots}


@pytest.mark.parametrize("text", ["1_0", "\u0663", "0x10", "1e3", "1.0", "", " "])
def test_numbers_are_written_as_everybody_writes_them(run: Run, birds: Path, text: str) -> None:
    """`int` takes `1_0` for 10, so that a slip of the finger deleted another record."""
    commands = [
        ("delete", birds, "--split", "train", "--", text),
        ("get", birds, "--split", "train", "--", text),
        ("gc", birds, "--expire", text),
        ("head", birds, "-n", text),
        ("plan", birds, "--split", "train", "--global-batch", text),
        ("compact", birds, "--shard-bytes", text),
        ("head", birds, "--split", "train", "--records", f"{text}_:"),
    ]
    for command in commands:
        ended = run(*command, "--json") if "--" not in command else run(command[0], "--json", *command[1:])
        assert (ended.code, ended.out) == (2, ""), command
        assert "found" in json.loads(ended.err)["error"] or "Unknown option" in ended.err
    assert run("log", birds, "--json").document["versions"][0]["version"] == 1


def test_numbers_beyond_64_bits(run: Run, birds: Path) -> None:
    """The errors spoke of something else: of what is an integer, and of `islice`."""
    huge = str(10**23)
    assert "beyond 64 bits" in run("get", birds, huge, "--split", "train").err
    assert "beyond 64 bits" in run("delete", birds, huge, "--split", "train").err
    assert len(run("head", birds, "-n", huge, "--json").document["records"]) == 30


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_documents_are_json_in_every_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """What an encoding lacks was written with the escapes of Python, which JSON has not."""
    text = "\xe9\u540d\U0001f600"
    url = tmp_path / text
    with shardio.DatasetWriter(url, {"t": "text"}) as out:
        out.write({"t": text})
    _, said, _ = printed(monkeypatch, encoding, "head", url, "--json")
    document = json.loads(said)
    assert document["records"][0]["value"] == {"t": text}
    assert document["url"] == str(url)
    _, _, said = printed(monkeypatch, encoding, "get", url, 7, "--json")
    assert json.loads(said)["exit_code"] == 2


def test_folders_whose_name_is_no_text(run: Run, tmp_path: Path) -> None:
    """The kind of what is in them was looked for among no files: an IndexError."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "x.jsonl").write_text("{}\n")
    for command in (["convert", folder, tmp_path / "out"], ["index", folder]):
        ended = run(*command, "--json")
        assert ended.code in {1, 3}
        assert "UTF-8" in ended.out + ended.err


@pytest.mark.parametrize(
    "start", [["-m", "shardio"], ["-c", "from shardio.cli import index; raise SystemExit(index())"]]
)
def test_an_interrupt_while_the_program_is_imported(tmp_path: Path, start: list[str]) -> None:
    """Ctrl-C in the first moment of a command was a traceback out of NumPy or cyclopts."""
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *start, "info", "x"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_adopt_has_its_old_name_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    frames, *_ = kernels.encode_frames([b"one"])
    (tmp_path / "a" / "x.tfrecord").write_bytes(memoryview(frames))
    assert run("index", str(tmp_path / "a")).code == 0
    assert run("adopt", str(tmp_path / "a"), "--update").code == 0
