"""Plans of ablations: what is accepted, the points that they stand for, and what is said about everything wrong."""

import itertools
from pathlib import Path

import pytest

from dapo_cli.ablation.folder import plan_differences, record_of
from dapo_cli.ablation.plan import MatchBy, read_plan
from dapo_cli.ablation.points import Ablation, change_lines, expand, load_ablation
from dapo_cli.config.load import load_recipe
from dapo_cli.config.shipped import plan_names, recipe_names
from dapo_cli.errors import UserError


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(f"recipe: quickstart\ndir: {folder / 'out'}\n{text}")
    return str(folder / name)


def points_of(folder: Path, text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(entry.name, entry.overrides) for entry in expand(read_plan(written(folder, text)))]


def ablation_of(folder: Path, text: str) -> Ablation:
    return load_ablation(read_plan(written(folder, text)))


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        ablation_of(folder, text)
    return str(caught.value)


def test_a_ladder_adds_up(tmp_path: Path) -> None:
    text = "kind: ladder\nrungs: [{name: a}, {name: b, set: [optimizer.lr=1]}, {name: c, set: [run.threads=2, x=3]}]"
    assert points_of(tmp_path, text) == [
        ("a", ()),
        ("b", ("optimizer.lr=1",)),
        ("c", ("optimizer.lr=1", "run.threads=2", "x=3")),
    ]


def test_leave_one_out_has_all_parts_and_all_but_one(tmp_path: Path) -> None:
    text = "kind: leave_one_out\nparts: [{name: a, set: [x=1]}, {name: b, label: the b, set: [y=2, z=3]}]"
    assert points_of(tmp_path, text) == [("full", ()), ("without_a", ("x=1",)), ("without_b", ("y=2", "z=3"))]
    labels = [entry.label for entry in expand(read_plan(written(tmp_path, text)))]
    assert labels == ["full", "without a", "without the b"]


def test_a_grid_is_every_combination_the_last_axis_fastest(tmp_path: Path) -> None:
    text = "kind: grid\naxes:\n  algorithm.clip_high: [0.2, 2.8e-1]\n  sampler.dynamic: [true, false]\n"
    assert points_of(tmp_path, text) == [
        ("clip_high=0.2,dynamic=true", ("algorithm.clip_high=0.2", "sampler.dynamic=true")),
        ("clip_high=0.2,dynamic=false", ("algorithm.clip_high=0.2", "sampler.dynamic=false")),
        ("clip_high=2.8e-1,dynamic=true", ("algorithm.clip_high=2.8e-1", "sampler.dynamic=true")),
        ("clip_high=2.8e-1,dynamic=false", ("algorithm.clip_high=2.8e-1", "sampler.dynamic=false")),
    ]


def test_names_of_a_grid_are_names_of_folders_and_tell_like_keys_apart(tmp_path: Path) -> None:
    text = "kind: grid\naxes:\n  data.seed: [1]\n  run.seed: [2]\n  a/b: [x/y, null, [p, q]]\n"
    names = [name for name, _ in points_of(tmp_path, text)]
    assert names[0] == "data.seed=1,run.seed=2,a-b=x-y"
    overrides = [overrides[2] for _, overrides in points_of(tmp_path, text)]
    assert overrides == ["a/b=x/y", "a/b=null", "a/b=[p, q]"]


def test_a_list_stands_as_it_is(tmp_path: Path) -> None:
    text = "kind: list\npoints: [{name: one, set: [x=1]}, {name: two, set: [x=2]}]"
    assert points_of(tmp_path, text) == [("one", ("x=1",)), ("two", ("x=2",))]


PAIR = "kind: list\npoints: [{name: low, set: [algorithm.clip_high=0.2]}, {name: high, label: Higher}]\n"


@pytest.mark.parametrize(
    ("text", "seeds"), [("seeds: 3", (0, 1, 2)), ("seeds: [7, 3]", (7, 3)), ("", (0,)), ("seeds: 1", (0,))]
)
def test_seeds(tmp_path: Path, text: str, seeds: tuple[int, ...]) -> None:
    ablation = ablation_of(tmp_path, PAIR + text)
    assert ablation.plan.seeds == seeds
    assert [run.name for run in ablation.runs] == [f"{name}/seed_{seed}" for seed in seeds for name in ("low", "high")]


@pytest.mark.parametrize(
    ("match", "override"),
    [
        ("{by: steps, amount: 7}", "run.steps=7"),
        ("{by: rollouts, amount: 900}", "run.budget_rollouts=900"),
        ("{by: seconds, amount: 2.5}", "run.budget_seconds=2.5"),
    ],
)
def test_all_points_are_matched_alike(tmp_path: Path, match: str, override: str) -> None:
    for point in ablation_of(tmp_path, f"{PAIR}match: {match}").points:
        key, _, value = override.partition("=")
        assert getattr(point.recipe.recipe.run, key.removeprefix("run.")) == float(value)
        assert override in point.overrides


def test_without_match_the_recipe_says_how_many_steps(tmp_path: Path) -> None:
    match = ablation_of(tmp_path, PAIR).match
    assert (match.by, match.amount) == (MatchBy.steps, load_recipe("quickstart").recipe.run.steps)


def test_threads_are_settled_unless_plan_or_recipe_does(tmp_path: Path) -> None:
    """A number that followed the machine, or the number of jobs, would change results."""
    assert [point.recipe.recipe.run.threads for point in ablation_of(tmp_path, PAIR).points] == [1, 1]
    own = ablation_of(tmp_path, PAIR + "base: [run.threads=3]\n")
    assert [point.recipe.recipe.run.threads for point in own.points] == [3, 3]


def test_what_is_changed_against_the_baseline_key_by_key(tmp_path: Path) -> None:
    text = """\
kind: list
points:
  - {name: base, set: [algorithm.clip_high=0.2]}
  - {name: two, set: [algorithm.dual_clip=10, sampler.surplus=carry]}
  - {name: none, set: [algorithm.clip_high=2e-1, learner=fsdp]}
"""
    base, two, none = ablation_of(tmp_path, text).points
    assert base.changed == {}
    assert two.changed == {
        "algorithm.clip_high": (0.2, 0.28),
        "algorithm.dual_clip": (None, 10.0),
        "sampler.surplus": ("discard", "carry"),
    }
    assert change_lines(two)[1] == "algorithm.dual_clip: null -> 10.0"
    assert none.changed == {"learner": ("single", "fsdp"), "learner.cpu_offload": ("not there", False)}


def test_a_recipe_beside_the_plan_comes_first(tmp_path: Path) -> None:
    (tmp_path / "quickstart").write_text("defaults: [quickstart, _self_]\nrun: {steps: 3}\n")
    assert ablation_of(tmp_path, PAIR).match.amount == 3


# (plan after `recipe` and `dir`, words that its one problem must hold)
WRONG = {
    "unknown key": (PAIR + "sed: 3", ["sed: no such key", "did you mean seeds?"]),
    "kind missing": ("points: []", ["kind: missing", "ladder, leave_one_out, grid, list"]),
    "kind misspelt": ("kind: lader", ["kind = lader", "did you mean ladder?"]),
    "entries of another kind": (PAIR + "rungs: []", ["rungs: belongs to kind ladder; kind list takes points"]),
    "one point": ("kind: list\npoints: [{name: a}]", ["points: must be a list of at least 2"]),
    "no axes": ("kind: grid", ["axes: must be"]),
    "axis without values": ("kind: grid\naxes: {run.threads: 3}", ["axes.run.threads = 3: must be a list of values"]),
    "name of no folder": (PAIR.replace("low", "../low"), ["points[0].name = ../low"]),
    "name twice": (PAIR.replace("high, label", "low, label"), ["name low is given twice"]),
    "key of a point": (PAIR.replace("label", "lable"), ["points[1].lable: no such key", "did you mean label?"]),
    "set is no list": (PAIR.replace("[algorithm.clip_high=0.2]", "3"), ["points[0].set: must be a list"]),
    "set without a value": (PAIR.replace("=0.2", ""), ["points[0].set: algorithm.clip_high: must be a KEY=VALUE"]),
    "seeds": (PAIR + "seeds: none", ["seeds = none: must be a whole number above 0"]),
    "endless seeds": (PAIR + "seeds: 100000000000", ["seeds = 100000000000: at most 10,000"]),
    "endless grid": (
        f"kind: grid\naxes: {{run.threads: {list(range(200))}, data.prompts: {list(range(51))}}}",
        ["axes: 10,200 combinations; at most 10,000"],
    ),
    "seeds twice": (PAIR + "seeds: [1, 1]", ["seeds = ['1', '1']: must be different"]),
    "match": (PAIR + "match: {by: steps}", ["match", "by: steps | rollouts | seconds"]),
    "match by": (PAIR + "match: {by: step, amount: 3}", ["match.by = step", "did you mean steps?"]),
    "half a step": (PAIR + "match: {by: steps, amount: 2.5}", ["match.amount = 2.5: must be a whole number above 0"]),
    "twice": (PAIR + "seeds: 1\nseeds: 2", ["seeds is given twice"]),
    "own seed": (PAIR + "base: [run.seed=3]", ["base: run.seed: each run has its own"]),
    "own folder": (PAIR.replace("algorithm.clip_high=0.2", "'run={dir: x}'"), ["point low: run.dir: each run has"]),
    "own budget": (PAIR + "base: [run.budget_seconds=3]", ["base: run.budget_seconds: `match` sets it"]),
    "own steps": (PAIR + "base: [run.steps=3]\nmatch: {by: steps, amount: 3}", ["base: run.steps: `match` sets it"]),
    "steps that differ": (
        PAIR.replace("algorithm.clip_high=0.2", "run.steps=3"),
        ["high: run.steps = 40, but 3"],
    ),
    "equal points": (PAIR.replace("0.2", "0.28"), ["points low and high have the same recipe"]),
    "many nodes": (
        PAIR + "base: [learner=fsdp, launch.nodes=2, 'launch.rendezvous=a:1']",
        ["launch.nodes = 2", "one node each"],
    ),
    "unknown recipe key": (PAIR + "base: [optimizer.lrr=1]", ["every point: optimizer.lrr = 1"]),
    "a rule of one recipe": (PAIR.replace("0.2", "-1"), ["point low: algorithm.clip_high = -1.0: must be above 0"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_wrong_thing(tmp_path: Path, case: str) -> None:
    text, words = WRONG[case]
    lines = complaint(tmp_path, text).splitlines()
    problems = [line for line in lines[1:] if case != "many nodes" or "point low" in line]
    assert len(problems) == 1 and lines[0].startswith(f"plan {tmp_path / 'mine.yaml'}: ")
    for word in words:
        assert word in problems[0]


def test_everything_wrong_with_the_form_is_told_at_once(tmp_path: Path) -> None:
    text = "kind: ladder\nsed: 3\nbase: x\nrungs: [{name: a b}, {set: [y]}, 7]\nseeds: 0\nmatch: {by: x, amount: -1}\n"
    message = complaint(tmp_path, text)
    words = ["sed:", "base:", "rungs[0].name = a b", "rungs[1].name: missing", "rungs[1].set: y", "rungs[2] = 7"]
    words += ["seeds = 0", "match.by = x", "match.amount = -1"]
    assert "9 problems" in message
    for word in words:
        assert sum(word in line for line in message.splitlines()) == 1


def test_problems_of_all_points_are_told_at_once_and_each_once(tmp_path: Path) -> None:
    text = """\
kind: list
points:
  - {name: one, set: [optimizer.lr=0, sampler.dynamc=true]}
  - {name: two, set: [optimizer.lr=0]}
  - {name: three}
base: [data.prompts=many]
"""
    lines = complaint(tmp_path, text).splitlines()
    assert "2 problems" in lines[0]
    assert "every point: data.prompts = many" in lines[1]
    assert "point one: sampler.dynamc = true" in lines[2] and "sampler.dynamic?" in lines[2]
    rules = complaint(tmp_path, text.replace("base: [data.prompts=many]\n", "").replace(", sampler.dynamc=true", ""))
    assert "point one, two: optimizer.lr = 0.0: must be above 0" in rules


def test_problems_of_a_grid_are_told_at_once_and_each_once(tmp_path: Path) -> None:
    axes = "{run.seed: [1, 2], optimizer.lr: [x, 1], sampler.dynamc: [true]}"
    lines = complaint(tmp_path, f"kind: grid\naxes: {axes}\nbase: [run.dir=x]").splitlines()
    assert [line.split(": ", 1)[1] for line in lines[1:]] == [
        "run.dir: each run has its own; take it out",
        "run.seed: each run has its own; take it out",
        "optimizer.lr = x: must be a number",
        "sampler.dynamc = true: no such key; did you mean sampler.dynamic?",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [("- a", "must be `key: value` lines"), ("kind: [", "not valid YAML"), ("# x", "recipe: missing")],
)
def test_files_that_are_no_plans(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_plan(str(tmp_path / "bad.yaml"))
    with pytest.raises(UserError, match=r"no such file; did you mean ablations/paper_ladder_quickstart\?"):
        read_plan("ablations/paper_lader_quickstart")


@pytest.mark.parametrize("name", plan_names())
def test_every_shipped_plan_is_sound(name: str) -> None:
    ablation = load_ablation(read_plan(name))
    assert len(ablation.points) > 1 and ablation.plan.name == name.rpartition("/")[2]
    assert name not in recipe_names()


def test_the_paper_s_ladder_ends_at_dapo() -> None:
    """The last rung is the quickstart as it is shipped, and Table 1's figures stand beside the rungs."""
    ablation = load_ablation(read_plan("ablations/paper_ladder_quickstart"))
    last = ablation.points[-1].recipe.recipe
    plain = load_recipe("quickstart", [f"run.dir={last.run.dir}", "run.threads=1"]).recipe
    assert last == plain
    assert [point.reference for point in ablation.points] == [30, 36, 38, 41, 42, 50]
    changes = [set(point.changed) for point in ablation.points]
    gained = [after ^ before for before, after in itertools.pairwise(changes)]
    assert gained == [
        {"overlong.filter_truncated"},
        {"algorithm.clip_high"},
        {"overlong.penalty", "overlong.filter_truncated"},
        {"algorithm.aggregation"},
        {"sampler.dynamic"},
    ]


class TestGrownPlans:
    """What a folder made for one plan takes of another."""

    def differences(self, folder: Path, text: str) -> list[str]:
        return list(plan_differences(record_of(ablation_of(folder, PAIR)), record_of(ablation_of(folder, text))))

    def test_seeds_and_points_may_be_added_at_the_end(self, tmp_path: Path) -> None:
        grown = PAIR.replace("Higher}", "Other words}, {name: more, set: [optimizer.lr=1]}") + "seeds: 2"
        assert self.differences(tmp_path, grown) == []

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (PAIR + "seeds: [1, 0]", "seeds: [0] in the folder, [1, 0] now"),
            (PAIR.replace("0.2", "0.21"), "point low: algorithm.clip_high=0.2 run.threads=1 in the folder"),
            (PAIR + "match: {by: rollouts, amount: 9}", "match: by=steps amount=40 in the folder, by=rollouts"),
            (PAIR.replace("[{name: low", "[{name: first, set: [optimizer.lr=1]}, {name: low"), "baseline: low in"),
        ],
    )
    def test_anything_else_is_another_ablation(self, tmp_path: Path, text: str, words: str) -> None:
        assert words in "\n".join(self.differences(tmp_path, text))
