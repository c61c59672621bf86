"""`dynamo top`: the load of models and workers, from the metrics of frontends."""
