# JupyterLab on a copy of notebook 00, with the locked environment (2.3 GB):
#
#     docker build --tag t3 . && docker run --rm --interactive --tty --publish 127.0.0.1:8888:8888 t3
#
# The image itself was never built. Its commands from `make` on were run on Debian 12 by another user in
# a fresh clone, where what apt-get installs was there already.
FROM debian:bookworm AS system
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates git make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home t3 && mkdir /t3 && chown t3 /t3
USER t3

FROM system
WORKDIR /t3
COPY --chown=t3 . .
RUN make .venv/ready
CMD ["make", "explore", "IP=0.0.0.0"]
