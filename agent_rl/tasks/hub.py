"""Data sets of the Hugging Face hub, streamed through the `datasets` library."""

from __future__ import annotations

from collections.abc import Iterator

from agent_rl.tasks.files import Row, split_name


def hub_rows(name: str, split: str) -> Iterator[Row]:
    """Rows of `owner/name` or `owner/name:config`. Takes the split `test` for evaluation even if it is called
    `validation`; never the train split in its place.

    Raises:
        ValueError: the data set cannot be had, or it has no such split.
    """
    import datasets

    repository, _, config = name.partition(":")
    try:
        available = datasets.get_dataset_split_names(repository, config or None)
        chosen = next((s for s in (split, *available) if s in available and split_name(s) == split_name(split)), None)
        if chosen is None:
            raise ValueError(f"hub data set {name!r} has no split {split!r} (found: {', '.join(available)})")
        rows = datasets.load_dataset(repository, config or None, split=chosen, streaming=True)
        for number, data in enumerate(rows, 1):
            yield Row(f"{name} [{chosen}]", f"row {number}", dict(data))
    except (OSError, ConnectionError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"{name!r} is no file or folder here, and as a hub data set it cannot be read ({error}): give a local file "
            "or folder, or check the name (`owner/name` or `owner/name:config`) and the connection"
        ) from error
