"""The dashboard: serves live documents of the cluster and its groups over HTTP, and the page that shows them."""
