# The image of docker-compose.yml. Base images are pinned by digest and packages by hash, so that two builds of one
# commit install the same files. `make update` compiles the requirements; dependabot proposes newer base images.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
WORKDIR /build
COPY requirements/build.txt requirements/image.txt requirements/
RUN pip install --no-cache-dir --require-hashes --requirement requirements/build.txt
RUN python -m venv /opt/runner
RUN /opt/runner/bin/pip install --no-cache-dir --require-hashes --requirement requirements/image.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY runner runner
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist .
RUN /opt/runner/bin/pip install --no-deps --no-index dist/*.whl

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
COPY --from=build /opt/runner /opt/runner
ENV PATH=/opt/runner/bin:$PATH
WORKDIR /app
COPY tasks tasks
COPY examples examples
RUN useradd --uid 10001 runner
USER 10001
