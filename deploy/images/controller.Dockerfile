# The image of the controller. `rootfs/` beside it is made by rootfs.sh; see build.sh.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="belay-controller" \
      org.opencontainers.image.description="Belay's CSI controller" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --chown=0:0 rootfs/ /
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/belay-controller"]
