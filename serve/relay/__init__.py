"""An upstream's own Responses answers on their way to the client: checked, put right, ended truthfully."""
