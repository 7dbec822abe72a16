# `tercet serve` on a CPU, for a folder of runs that is mounted at /runs; docs/how-to/serving.md
#
#     docker build -t tercet .
#     docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" -e TERCET_API_KEY tercet
#
# What is installed comes from the index that pip is set to: of PyTorch's builds the one that the index has. For one that
# is for CPUs alone, and smaller, name its index: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.13-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/tercet
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
# The hook compiles the kernels for each level of CPUs into the package, so that the image needs no compiler.
RUN HATCH_BUILD_HOOKS_ENABLE=1 /opt/tercet/bin/pip install --no-cache-dir "/src[serve]"

FROM python:3.13-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin tercet \
    && install -d -o tercet /var/cache/tercet
COPY --from=build /opt/tercet /opt/tercet
ENV PATH=/opt/tercet/bin:$PATH PYTHONUNBUFFERED=1 TERCET_CACHE=/var/cache/tercet
USER tercet
WORKDIR /runs
VOLUME /runs
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
# Each folder in /runs is served under its own name. It listens to whoever reaches the container, so it wants a key.
ENTRYPOINT ["sh", "-c", "exec tercet serve --host 0.0.0.0 --port 8000 \"$@\" /runs/*/", "tercet"]
