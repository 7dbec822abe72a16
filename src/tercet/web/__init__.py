"""What listens, whatever it answers: sockets, connections and their ends, and under which names it may be asked."""
