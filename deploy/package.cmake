# The places of installed files (`cmake --install`), and the Debian package that `cpack` makes of the same files.
#
# The program writes its own manual page and completions, so that they have every option.
include(GNUInstallDirs)

set(generated ${CMAKE_BINARY_DIR}/package)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
file(MAKE_DIRECTORY ${generated})
add_custom_command(OUTPUT ${generated}/bagserve.1.gz ${generated}/bagserve ${generated}/_bagserve
        ${generated}/bagserve.fish ${generated}/bagserve.service ${generated}/changelog.gz
    COMMAND bagserve manual > ${generated}/bagserve.1
    COMMAND gzip -9nf ${generated}/bagserve.1
    COMMAND bagserve completion bash > ${generated}/bagserve
    COMMAND bagserve completion zsh > ${generated}/_bagserve
    COMMAND bagserve completion fish > ${generated}/bagserve.fish
    # The unit is the package's alone, which has a prefix of its own.
    COMMAND sed "s|/usr/local/bin/|${CPACK_PACKAGING_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/|"
        ${CMAKE_SOURCE_DIR}/deploy/systemd/bagserve.service > ${generated}/bagserve.service
    COMMAND gzip -9nc ${CMAKE_SOURCE_DIR}/deploy/debian/changelog > ${generated}/changelog.gz
    DEPENDS bagserve deploy/systemd/bagserve.service deploy/debian/changelog
    VERBATIM)
add_custom_target(package_files ALL DEPENDS ${generated}/bagserve.1.gz)
# The package without the tests, which cmake's own target `package` would build first.
add_custom_target(deb COMMAND ${CMAKE_CPACK_COMMAND} -G DEB DEPENDS bagserve package_files
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR} VERBATIM)

install(TARGETS bagserve RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET bagserve-feed)
    add_custom_command(OUTPUT ${generated}/bagserve-feed.1.gz
        COMMAND gzip -9nc ${CMAKE_SOURCE_DIR}/deploy/debian/bagserve-feed.1 > ${generated}/bagserve-feed.1.gz
        DEPENDS deploy/debian/bagserve-feed.1 VERBATIM)
    add_custom_target(feed_manual ALL DEPENDS ${generated}/bagserve-feed.1.gz)
    add_dependencies(deb bagserve-feed feed_manual)
    install(TARGETS bagserve-feed RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES ${generated}/bagserve-feed.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES ${generated}/bagserve.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${generated}/bagserve
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${generated}/_bagserve DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${generated}/bagserve.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES proto/clients/c/bagserve_client.h proto/clients/c/bagserve_admin.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES deploy/debian/copyright ${generated}/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The pages, in the folders by which they link to each other, and the files that they explain.
foreach(page README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md proto/PROTOCOL.md proto/PARTS.md proto/openapi.json
        config/TABLES.md config/FRESH.md config/SEQUENCES.md config/examples/README.md deploy/README.md deploy/SCALING.md
        deploy/RELEASES.md kernels/README.md server/metrics/README.md tests/README.md tests/bench/README.md)
    get_filename_component(folder ${page} DIRECTORY)
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
file(GLOB examples RELATIVE ${CMAKE_SOURCE_DIR} config/examples/*.json)
install(FILES ${examples} DESTINATION ${CMAKE_INSTALL_DOCDIR}/config/examples)
install(FILES deploy/monitoring/alerts.yml deploy/monitoring/dashboard.json deploy/monitoring/prometheus.yml
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/deploy/monitoring)
install(DIRECTORY deploy/proxy DESTINATION ${CMAKE_INSTALL_DOCDIR}/deploy)

# deploy/place, and the manifests that it copies from beside itself.
install(PROGRAMS deploy/place DESTINATION ${CMAKE_INSTALL_DATADIR}/bagserve)
install(FILES deploy/kubernetes/overlays/shards/nodes.yaml deploy/kubernetes/overlays/shards/coordinator.yaml
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bagserve/kubernetes/overlays/shards)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME bagserve)
# Whoever publishes the package is its maintainer. The default is no address, and says so.
set(BAG_MAINTAINER "unset (BAG_MAINTAINER) <maintainer@bagserve.invalid>" CACHE STRING
    "The maintainer of the Debian package: NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT "${BAG_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for embedding bags")
set(CPACK_PACKAGE_DESCRIPTION
"Keeps embedding tables in memory, takes lists of ids over HTTP, pools the rows
of each bag and sends back one vector per bag. Speaks the Open Inference
Protocol (KServe V2) with Triton's binary tensor extension.")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Loaded by models with a projection alone.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libopenblas0-pthread")
# The packing of tables needs Python, its client NumPy, and its module for PyTorch that, too.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "haproxy | nginx, prometheus, python3, python3-numpy, python3-torch")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${CMAKE_SOURCE_DIR}/deploy/debian/conffiles ${CMAKE_SOURCE_DIR}/deploy/debian/postinst
    ${CMAKE_SOURCE_DIR}/deploy/debian/prerm ${CMAKE_SOURCE_DIR}/deploy/debian/postrm)
# Only in the package: the units, and paths outside of any prefix.
set(of_package COMPONENT package EXCLUDE_FROM_ALL)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENTS_ALL Unspecified package)
install(FILES ${generated}/bagserve.service deploy/systemd/bagserve.socket
    deploy/systemd/bagserve-admin.socket DESTINATION lib/systemd/system ${of_package})
install(FILES deploy/debian/bagserve.json DESTINATION /etc/bagserve ${of_package})
install(FILES deploy/debian/lintian-overrides DESTINATION share/lintian/overrides RENAME bagserve ${of_package})
# Debian's Python finds modules there; elsewhere pip knows where they go.
install(FILES proto/clients/python/bagserve_client.py proto/clients/python/bagserve_dcp.py
    proto/clients/python/bagserve_export.py proto/clients/python/bagserve_torch.py
    proto/clients/python/bagserve_trainers.py
    DESTINATION lib/python3/dist-packages ${of_package})
install(DIRECTORY DESTINATION /var/lib/bagserve/models ${of_package})
include(CPack)
