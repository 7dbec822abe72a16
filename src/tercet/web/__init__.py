"""HTTP servers: sockets, connections with timeouts, checks of host names and origins, and files of pages."""
