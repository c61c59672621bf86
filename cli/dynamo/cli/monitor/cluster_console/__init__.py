"""The console of a whole cluster: pipelines, their scaling, and what each namespace uses, as the user may read them."""
