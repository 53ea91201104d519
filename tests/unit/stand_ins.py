"""Commands that note their arguments instead of doing their work, first on PATH."""

import os
from pathlib import Path


class StandIns:
    """`commands` maps a name to its bash text, which finds the folder for its notes in FAKE_RECORDS."""

    def __init__(self, folder: Path, commands: dict[str, str]) -> None:
        self.bin, self.records = folder / "bin", folder / "records"
        self.bin.mkdir()
        self.records.mkdir()
        for name, text in commands.items():
            (self.bin / name).write_text(f"#!/bin/bash\n{text}")
            (self.bin / name).chmod(0o755)

    def job(self, nodes: int, status: int) -> dict[str, str]:
        """What Slurm sets for a job of nodes with eight GPUs each, whose training ends with `status`."""
        path = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        fakes = {"FAKE_RECORDS": str(self.records), "FAKE_STATUS": str(status)}
        slurm = {"SLURM_NNODES": str(nodes), "SLURM_CPUS_ON_NODE": "96", "SLURM_GPUS_ON_NODE": "8"}
        return path | fakes | slurm | {"SLURM_JOB_ID": "1234567"}

    def called_with(self, note: str) -> list[str] | None:
        """The last call's arguments, None where there was none."""
        record = self.records / note
        return record.read_text().split("\0")[:-1] if record.exists() else None
