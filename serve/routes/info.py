"""What the server says about itself: `/`, `/health`, `/status`, `/v1/models`."""

from __future__ import annotations

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
    svc = http.svc
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


ROUTES = (
    Route("/", {"GET": get_root}),
    Route("/health", {"GET": get_health}),
    Route("/status", {"GET": get_status}),
    Route("/v1/models", {"GET": get_models}),
)
