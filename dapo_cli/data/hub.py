"""Data sets of the Hugging Face hub, always at one commit."""

import re

from dapo_cli.config.schema import HubData
from dapo_cli.data.tables import Table, Wanted, dataset_table
from dapo_cli.errors import UserError, first_line

COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_revision(config: HubData) -> str:
    """The commit hash that `data.revision` means today; a full hash is itself and needs no network."""
    if config.revision and COMMIT.fullmatch(config.revision):
        return config.revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        commit = HfApi().dataset_info(config.id, revision=config.revision).sha
    except HFValidationError as error:
        raise UserError(f"data.id={config.id} is no hub id: write owner/name") from error
    except HfHubHTTPError as error:
        raise UserError(
            f"data.id={config.id}, data.revision={config.revision}: the hub answers: {first_line(error)}; "
            "check both names, and log in (`hf auth login`) for a private or gated data set"
        ) from error
    except (OfflineModeIsEnabled, OSError) as error:
        raise _unreachable(config, error) from error
    except Exception as error:
        # The hub's HTTP client has exceptions of its own for a host that cannot be reached.
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise _unreachable(config, error) from error
    assert commit is not None, "the hub always names a commit"
    return commit


def hub_table(config: HubData, commit: str, wanted: Wanted) -> Table:
    import datasets

    name = f"{config.id}[{config.split}]"
    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(config.id, config.config, split=config.split, revision=commit)
    except ConnectionError as error:
        raise _unreachable(config, error) from error
    except Exception as error:  # builders, networks and archives: the library wraps none of them
        raise UserError(
            f"data.id={config.id}, data.config={config.config}, data.split={config.split} at {commit}: cannot be "
            f"loaded: {first_line(error)}; check these names on the data set's page"
        ) from error
    return dataset_table(dataset, name, wanted)


def _unreachable(config: HubData, error: Exception) -> UserError:
    pinned = config.revision and COMMIT.fullmatch(config.revision)
    remedy = "load it once with a network" if pinned else "give the full commit hash in data.revision"
    return UserError(
        f"data.id={config.id}: the Hugging Face hub cannot be reached ({first_line(error)}); {remedy} to use a cached "
        "copy, or download the files and use `data: files`"
    )
