"""What differs between tasks: data, batches, loss, what validation measures, what a report shows."""
