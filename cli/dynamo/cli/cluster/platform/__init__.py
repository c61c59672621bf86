"""The platform on a cluster: installed, checked and uninstalled, by helm."""
