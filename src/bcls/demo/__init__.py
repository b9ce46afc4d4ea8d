"""The whole job in four minutes: data, labels, training under three losses, a table and a report."""
