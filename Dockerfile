# A small image with the server: `docker build -t shoal .`, then
#     docker run -p 8000:8000 -p 8001:8001 -p 8002:8002 -v "$PWD/models:/models" shoal
# EXTRAS names what else to install: --build-arg EXTRAS=tasks,torch
# Not built yet where this repository is developed: there is no image registry in reach.
FROM python:3.11-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src

FROM python:3.11-slim
ARG EXTRAS=tasks
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir --find-links /dist "shoal[${EXTRAS}]" \
    && useradd --create-home shoal
USER shoal
EXPOSE 8000 8001 8002
ENTRYPOINT ["shoal"]
CMD ["serve", "/models"]
