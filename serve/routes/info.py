"""What the server says about itself: `/`, `/health`, `/status`, `/v1/models`."""

from __future__ import annotations

from datetime import UTC, datetime

from serve.exchange import Exchange, Route


def get_root(http: Exchange) -> None:
    http.send_json(200, {"name": "strata-serve", "model": http.svc.model, "api": "/v1", "status": "/status"})


def get_health(http: Exchange) -> None:
    svc = http.svc
    loaded = svc.loaded()
    state = "ok" if loaded else svc.engine.status().state
    context = svc.engine.facts.max_context
    http.send_json(200, {"status": state, "loaded": loaded, "model": svc.model, "max_context": context})


def get_status(http: Exchange) -> None:
    http.send_json(200, http.svc.status)


def get_models(http: Exchange) -> None:
    """In the form of the API whose client asks: Anthropic's clients send their API's version."""
    svc = http.svc
    if "anthropic-version" in http.headers:
        _anthropic_models(http)
        return
    models = [
        {
            "id": name,
            "object": "model",
            "created": int(svc.started_at),
            "owned_by": "strata-serve",
            "max_model_len": svc.engine.facts.max_context,
        }
        for name in svc.models
    ]
    http.send_json(200, {"object": "list", "data": models})


def _anthropic_models(http: Exchange) -> None:
    """Source: Anthropic API reference, list models, and `ModelInfo` of anthropic-python 2.14."""
    svc = http.svc
    since = datetime.fromtimestamp(int(svc.started_at), UTC).isoformat().replace("+00:00", "Z")
    models = [
        {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": since,
            "lifecycle": "active",
            "max_input_tokens": svc.engine.facts.max_context,
        }
        for name in svc.models
    ]
    http.send_json(200, {"data": models, "has_more": False, "first_id": svc.models[0], "last_id": svc.models[-1]})


ROUTES = (
    Route("/", {"GET": get_root}),
    Route("/health", {"GET": get_health}),
    Route("/status", {"GET": get_status}),
    Route("/v1/models", {"GET": get_models}),
)
