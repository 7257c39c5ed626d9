"""The house rules that no linter knows: names, sizes, doors, and which room may do what.

These tests read the sources; on a built wheel they are left out.  The order of the rooms itself is in
pyproject.toml, checked by `lint-imports`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import tomllib
import types
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.suites.offered import offered

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("shardio", "indexer")
    for path in (ROOT / folder).rglob("*.py")
    if "v1" not in path.parts
)
VAGUE = {"base", "common", "helper", "helpers", "lib", "misc", "shared", "tools", "util", "utils"}

# What only some rooms may import, and why.  A name stands for itself and everything below it.
THREADS = {"storage", "streaming"}
ONLY_IN = {
    "_thread": THREADS,
    "asyncio": THREADS,
    "queue": THREADS,
    # Any executor of the caller's; a filter of the reader calls a function of the caller's in threads.
    "concurrent": THREADS | {"parallel", "indexer", "reader", "convert", "lifecycle", "maintenance"},
    "multiprocessing": THREADS | {"parallel", "indexer"},
    "sched": THREADS,
    "time": THREADS | {"parallel"},
    "datetime": THREADS | {"cli", "catalog"},  # a version carries the time of its commit, for people alone
    # Retries are spread; `shardio.torch.seeded` seeds the global generators of the caller's transform. An
    # order comes from the raw words of a keyed generator.
    "random": {"storage", "torch"},
    "numpy.random": {"order", "torch"},
    "argparse": set(),
    "click": {"cli"},
    "tqdm": {"progress"},
}
# Locks and thread-local values make a pure room safe to use from threads; they start none.
HARMLESS_THREADING = {"BoundedSemaphore", "Lock", "RLock", "current_thread", "local", "main_thread"}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] == "indexer" else parts[1]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return re.sub(r"^indexer\b", "shardio_indexer", name)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), path)


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Every dotted name that the file imports: `from a import b` gives both `a` and `a.b`."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def attributes_of(path: Path, name: str) -> set[str]:
    """What the file takes out of a module: `name.this` and `from name import this`."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == name:
            found |= {alias.name for alias in node.names}
    return found


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 20


def broken(rule: Callable[[Path], object], sources: Iterable[Path] = SOURCES) -> dict[str, object]:
    """The files that break a rule, and how: a rule returns what is wrong, nothing where all is well."""
    found = {path.relative_to(ROOT).as_posix(): rule(path) for path in sources}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_a_file_says_what_it_promises() -> None:
    """A file's first lines say what it promises."""
    assert broken(lambda path: not ast.get_docstring(tree_of(path))) == {}


def test_a_name_says_something() -> None:
    """No `utils`, `common`, `base`, `helpers`."""
    assert (
        broken(
            lambda path: VAGUE & {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}
        )
        == {}
    )


def test_a_name_is_the_name_of_one_class() -> None:
    """No two classes share a name, within a room or between rooms; an underscore makes no difference."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        # A kernel that is a class has one name in both implementations, as one that is a function has.
        if path.parent.name == "_compiled":
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# Words of old books where the present day has plain ones: "not a number", "is", "callers", "others".
DATED = re.compile(
    r"\b([Nn]obody|[Ss]omebody|[Ww]hoever|[Ww]hom|[Aa]new|in vain|in the mean|without a word|let go of)\b"
    r"|\blies (?:in|on|at|under|inside|beside|within|behind)\b"
    r"|(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|reason|such|memory|way)[a-z]"
)


def test_words_are_those_of_today() -> None:
    """Docstrings, comments, messages, tests and pages in the plain English of Python's own pages."""
    # One of the cases there has the name that it has in a golden file.
    spared = {Path(__file__), ROOT / "tests" / "codecs" / "_forms.py"}
    # The log of measurements stays as it was written.
    spared.add(ROOT / "docs" / "design" / "performance-log.md")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = [path for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *pages] if path not in spared]

    def dated(path: Path) -> list[str]:
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return [f"{number}: {found[0]}" for number, line in lines if (found := DATED.search(line))]

    assert broken(dated, texts) == {}


def test_private_files_are_marked() -> None:
    """A room is entered through its `__init__`; the files behind it begin with `_`."""

    def unmarked(path: Path) -> list[str]:
        behind = path.relative_to(ROOT).parts[2 if room_of(path) != "indexer" else 1 :]
        # Users name the module of their engine; what these share is behind them. Names of keys are a module.
        spared = {
            "engines": {"beam.py", "dask.py", "polars.py", "ray.py", "spark.py", "torchdata.py"},
            "metadata": {"naming.py"},
        }
        return [
            part for part in behind if not part.startswith("_") and part not in spared.get(room_of(path), ())
        ]

    assert broken(unmarked) == {}


def test_rooms_are_entered_by_the_door() -> None:
    """No file imports what is private to another room."""

    def private(path: Path) -> set[str]:
        own = f"shardio.{room_of(path)}" if room_of(path) != "indexer" else "shardio_indexer"
        return {
            name
            for name in imports_of(path)
            if re.match(r"shardio(_indexer)?\..*\b_[a-z]", name) and not name.startswith(f"{own}.")
        }

    assert broken(private) == {}


def test_no_import_is_hidden() -> None:
    """A module named in a call of `import_module` is one that the import contract does not see."""

    def hidden(path: Path) -> list[str]:
        calls = (node for node in nodes_of(path) if isinstance(node, ast.Call) and node.args)
        named = ((ast.unparse(call.func), call.args[0]) for call in calls)
        return [
            ast.unparse(name)
            for function, name in named
            if function.endswith("import_module")
            and isinstance(name, ast.Constant)
            and str(name.value).startswith("shardio")
        ]

    assert broken(hidden) == {}


def test_files_of_a_room_import_each_other_in_one_direction() -> None:
    """No circles, also none by annotation or by an import inside a function."""
    names = {module_of(path): path for path in SOURCES if path.name != "__init__.py"}
    below = {
        name: {
            other for other in imports_of(path) if other in names and room_of(names[other]) == room_of(path)
        }
        for name, path in names.items()
    }
    # Files that import nothing that is left, or that nothing left imports, are in no circle.
    while free := {
        name
        for name, others in below.items()
        if not others & below.keys() or not any(name in its for its in below.values())
    }:
        below = {name: others for name, others in below.items() if name not in free}
    found: dict[str, list[str]] = {}
    for name in sorted(below):
        found.setdefault(room_of(names[name]), []).append(name)
    assert found == {}


def test_the_page_of_the_house_lists_the_files() -> None:
    """`docs/design/house.md` names the files of each room, and none that is gone."""
    page = (ROOT / "docs" / "design" / "house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert {"metadata", "reader", "storage", "indexer"} <= {room for room, _ in rows}

    def stale(room: str, text: str) -> set[str]:
        folder = ROOT / "indexer" if room == "indexer" else ROOT / "shardio" / room
        files = {path.stem for path in folder.glob("_*.py")} - {"__init__"}
        told = set(re.findall(r"`(_\w+)`", text))
        # `convert` has a file for each source besides.
        return told - files if room == "convert" else told ^ files

    assert {room: wrong for room, text in rows if (wrong := stale(room, text))} == {}


def test_the_page_of_the_house_shows_the_rooms_of_the_import_contract() -> None:
    """The contract in pyproject.toml is the map of the rooms; the page has its floors, from the roof down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each.get("containers") == ["shardio"])
    floors = [set(re.findall(r"\w+", layer)) for layer in layers]
    page = (ROOT / "docs" / "design" / "house.md").read_text(encoding="utf-8")
    plan = re.split(r"^```$", page, flags=re.MULTILINE)[1]
    shown = [set(re.findall(r"\w+", line.split("  ")[0])) for line in plan.strip().splitlines()]
    # The program may be called by the module's name; the indexer is a package of its own, below the program.
    assert [floor for floor in shown if floor != {"indexer"}] == [f for f in floors if f != {"__main__"}]


def test_everything_is_done_in_its_room() -> None:
    """Threads and clocks only in storage and streaming, randomness only in order."""

    def misplaced(path: Path) -> set[str]:
        names = {
            name
            for name in imports_of(path)
            for owned, rooms in ONLY_IN.items()
            if (name == owned or name.startswith(f"{owned}.")) and room_of(path) not in rooms
        }
        # A worker's watch of its parent is one thread, in `parallel`.
        if room_of(path) not in THREADS | {"parallel"}:
            names |= {f"threading.{name}" for name in attributes_of(path, "threading") - HARMLESS_THREADING}
        if room_of(path) not in ONLY_IN["numpy.random"]:
            # The name of the type is not random: a transform may say that it takes a Generator.
            names |= {"numpy.random" for node in nodes_of(path) if _makes_a_generator(node)}
        return names

    assert broken(misplaced) == {}


def _makes_a_generator(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and re.match(r"(np|numpy)\.random\.", ast.unparse(node.func)) is not None
    )


def test_behaviour_does_not_depend_on_the_environment() -> None:
    """No environment variables for behaviour; launchers say rank and world size there, and torch listens.

    Clouds' own libraries find credentials there: clients are shared only while those stay the same.  A shell
    that wants words completed says so there, and a terminal that it shows no colours.
    """
    known = {
        ("storage", "_backends.py"),
        ("streaming", "_scratch.py"),
        ("cli", "_main.py"),
        ("cli", "_console.py"),
    }
    listeners = [path for path in SOURCES if room_of(path) == "torch" or (room_of(path), path.name) in known]
    variables = {"environ", "environb", "getenv", "putenv"}
    others = [path for path in SOURCES if path not in listeners]
    assert broken(lambda path: attributes_of(path, "os") & variables, others) == {}


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """`shardio.stream` is a function, so its module is `streaming`."""
    shardio = importlib.import_module("shardio")
    modules = {path.stem for path in (ROOT / "shardio").iterdir()}
    public = {
        name
        for name in getattr(shardio, "__all__", ())
        if not isinstance(getattr(shardio, name), types.ModuleType)
    }
    assert public & modules == set()


def test_a_room_names_what_it_offers() -> None:
    """A room's `__init__` re-exports by `name as name` or `__all__`, and everything named there exists."""

    def unkept(path: Path) -> list[str]:
        module = importlib.import_module(module_of(path))
        imported = any(
            isinstance(node, ast.ImportFrom) and node.module != "__future__" for node in tree_of(path).body
        )
        if imported and not offered(module):
            return ["offers nothing"]
        return [name for name in offered(module) if not hasattr(module, name)]

    # JAX may not be imported into the process of the tests; those of `shardio.jax` import what it offers.
    rooms = [path for path in SOURCES if path.name == "__init__.py" and room_of(path) != "jax"]
    assert broken(unkept, rooms) == {}


def test_the_package_offers_at_run_time_what_type_checkers_see() -> None:
    """Names are loaded when they are first used, so they are imported for type checkers apart."""
    path = ROOT / "shardio" / "__init__.py"
    block = next(node for node in tree_of(path).body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    shardio = importlib.import_module("shardio")
    assert sorted(shardio.__all__) == sorted(seen)
    for name, module in seen.items():
        assert getattr(shardio, name) is getattr(importlib.import_module(str(module)), name), name


def test_only_what_has_a_public_name_says_what_it_offers() -> None:
    """What a file whose name begins with `_` offers is what its room takes from it, without a second list."""

    def said(path: Path) -> list[str]:
        targets = (node.targets for node in tree_of(path).body if isinstance(node, ast.Assign))
        return [
            ast.unparse(target) for names in targets for target in names if ast.unparse(target) == "__all__"
        ]

    private = [path for path in SOURCES if path.name.startswith("_") and not path.name.startswith("__")]
    assert broken(said, private) == {}


def test_the_generated_code_matches_the_protos(tmp_path: Path) -> None:
    """`shardio/v1` is what the pinned compiler makes of `protos/`, byte for byte, and nothing else."""
    compiler = ROOT / ".build" / "pbenv" / "bin" / "python"
    if not compiler.exists():
        pytest.fail("the pinned protobuf compiler is not installed: run `make tools`")
    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").rglob("*.proto"))
    arguments = ["-I", "protos", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([compiler, "-m", "grpc_tools.protoc", *arguments, *protos], cwd=ROOT, check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "shardio" / "v1").iterdir()}
    committed = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "shardio" / "v1").glob("*_pb2.py*")
    }
    stale = {name for name in made | committed if made.get(name) != committed.get(name)}
    assert stale == set(), "run `make protos` and commit what it changes"


def test_everything_that_tests_install_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    named = {_name_of(line) for lines in (project["dependencies"], *extras) for line in lines}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {_name_of(line) for line in lines if "==" in line}
    # Beam needs an older protobuf than all else, and an environment of its own.
    assert named - pinned - {"shardio", "apache-beam"} == set(), "run `make constraints`"


def _name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower().replace("_", "-")


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert importlib.import_module("shardio").__version__ == version


def test_actions_are_pinned_by_digest():
    uses = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 10
    assert [each for each in uses if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d[\d.]*", each)] == []


def test_versions_of_the_project_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
