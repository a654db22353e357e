# The image of the node agent. `rootfs/` beside it is made by rootfs.sh; see build.sh.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="belay-node" \
      org.opencontainers.image.description="Belay's node agent with the tools it runs" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --chown=0:0 rootfs/ /
ENV PATH=/usr/sbin:/usr/bin
ENTRYPOINT ["/usr/bin/belay-node"]
