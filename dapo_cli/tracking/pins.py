"""Hub models and data at the commits that a manifest records, whatever their branches have become since."""

from dataclasses import replace

from dapo_cli.config.schema import DataConfig, HubData, PretrainedModel, Recipe
from dapo_cli.tracking.manifest import Manifest, leaves


def recorded_commits(manifest: Manifest) -> dict[str, str]:
    """Recipe key -> the commit that the run used, for each part of it that came from the hub.

    For example {"model.revision": "0123…", "eval.data.revision": "4567…"}.
    """
    recipe = dict(leaves(manifest["recipe"], ""))
    commits = {"model.revision": manifest["model"]["commit"]} if manifest["model"].get("commit") else {}
    for record in manifest["data"]:
        # Of the data sections those of the hub alone have an id.
        if f"{record.get('section')}.id" in recipe:
            commits[f"{record['section']}.revision"] = record["fingerprints"][0]["sha256"]
    return commits


def pinned(recipe: Recipe, manifest: Manifest) -> Recipe:
    """`recipe` with these commits in place of its revisions, wherever it names the same model or data set at the same
    revision as the manifest's recipe does."""
    commits, recorded = recorded_commits(manifest), dict(leaves(manifest["recipe"], ""))

    def data_pinned(section: DataConfig | None, name: str) -> DataConfig | None:
        same = isinstance(section, HubData) and (section.id, section.revision) == (
            recorded.get(f"{name}.id"),
            recorded.get(f"{name}.revision"),
        )
        commit = commits.get(f"{name}.revision")
        return replace(section, revision=commit) if isinstance(section, HubData) and same and commit else section

    model = recipe.model
    commit = commits.get("model.revision")
    if isinstance(model, PretrainedModel) and commit is not None:
        same = (model.path, model.revision) == (recorded["model.path"], recorded.get("model.revision"))
        model = replace(model, revision=commit) if same else model
    data = data_pinned(recipe.data, "data")
    assert data is not None, "a recipe has data"
    held_out = replace(recipe.eval, data=data_pinned(recipe.eval.data, "eval.data"))
    return replace(recipe, model=model, data=data, eval=held_out)
