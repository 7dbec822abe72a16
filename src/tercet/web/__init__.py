"""HTTP servers: sockets, connections and their timeouts, and the checks of host names and origins."""
