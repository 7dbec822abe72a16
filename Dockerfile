# `tercet serve` on a CPU, for run folders mounted at /runs; see docs/how-to/serving.md
#
#     docker build -t tercet .
#     docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" -e TERCET_API_KEY tercet
#
# Packages come from pip's configured index, including its build of PyTorch. For the smaller CPU-only build, add
# its index: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.13-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/tercet
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
# The hook compiles the kernels for each instruction-set level into the package, so the image needs no compiler.
RUN HATCH_BUILD_HOOKS_ENABLE=1 /opt/tercet/bin/pip install --no-cache-dir "/src[serve,structured]"

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
# Serve each folder in /runs under its name. The server listens on all interfaces, so set TERCET_API_KEY.
ENTRYPOINT ["sh", "-c", "exec tercet serve --host 0.0.0.0 --port 8000 \"$@\" /runs/*/", "tercet"]
