# `dapo` with vLLM and DeepSpeed for machines with NVIDIA GPUs; docs/scaling.md says how to start it.
#
#   docker build -t dapo .
#   docker run --rm --gpus all --ipc=host -v "$PWD:/work" dapo train my.yaml
#
# torch's wheels bring CUDA's libraries; the toolkit of this image is for kernels that are compiled while running (vLLM,
# Triton, DeepSpeed's offload). The host needs a driver that knows this CUDA.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${CUDA_IMAGE}

ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/dapo PATH=/opt/dapo/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv "$VIRTUAL_ENV"

# The packages before the code, so that a change of the code does not fetch them again.
WORKDIR /src
COPY constraints-cuda.txt ./
RUN pip install -c constraints-cuda.txt vllm deepspeed peft

COPY pyproject.toml README.md ./
COPY dapo_cli dapo_cli
COPY recipes recipes
RUN pip install -c constraints-cuda.txt ".[vllm,deepspeed,lora,liger]"

# `docker run --user "$(id -u):$(id -g)"` writes runs into a mounted folder as you; so any user may write here.
RUN useradd --create-home --uid 10001 dapo && mkdir /work && chmod 1777 /home/dapo /work
ENV HOME=/home/dapo
USER dapo
WORKDIR /work
ENTRYPOINT ["dapo"]
CMD ["--help"]
