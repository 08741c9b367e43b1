"""How the mocks, nginx and toolway are configured."""

import json
import os

# One worker, connections kept on both sides, nothing buffered that could be passed on, and no log. With its defaults
# nginx writes a request of more than 16 KB into a file first, which would make any gateway look good. `/buffered` is
# for comparison: there the whole request is in memory before the model is asked, as in gateways that look into it.
NGINX = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    keepalive_requests 100000000;
    client_max_body_size 64m;
    upstream model {{
        server 127.0.0.1:{model};
        keepalive 512;
        keepalive_requests 100000000;
    }}
    upstream server {{
        server 127.0.0.1:{server};
        keepalive 512;
        keepalive_requests 100000000;
    }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_read_timeout 300s;
    {trust}
    server {{
        listen 127.0.0.1:{port}{tls};
        location /v1/ {{ proxy_pass {scheme}://model; }}
        location /buffered/ {{
            client_body_buffer_size 8m;
            proxy_request_buffering on;
            proxy_pass {scheme}://model/;
        }}
        location /rpc/ {{ proxy_pass http://server; }}
    }}
}}
"""

# nginx checks the name, toolway the address that it is configured with. rustls takes no CA for a server.
CERTIFICATE = [
    *("-subj", "/CN=model"),
    *("-addext", "subjectAltName=DNS:model,IP:127.0.0.1"),
    *("-addext", "basicConstraints=critical,CA:FALSE"),
]

ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Says what it is told",
        "parameters": {
            "type": "object",
            "properties": {"message": {"type": "string", "description": "The message"}},
            "required": ["message"],
        },
    },
}


def nginx(folder, port, model, server, certificate=None, serves_tls=False):
    """With a certificate either the model is asked over TLS, or, to stand before it, TLS is served."""
    to_model = {"scheme": "http", "trust": "", "tls": ""}
    if serves_tls:
        to_model["tls"] = f" ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate}.key; ssl_protocols TLSv1.3"
    elif certificate:
        trust = f"proxy_ssl_trusted_certificate {certificate}; proxy_ssl_verify on; proxy_ssl_protocols TLSv1.3;"
        to_model |= {"scheme": "https", "trust": trust}
    # A master that is root gives its worker to nobody, who cannot read this folder.
    user = "user root;" if os.geteuid() == 0 else ""
    return NGINX.format(folder=folder, port=port, model=model, server=server, user=user, **to_model)


def toolway(folder, port, model, server_url=None, functions=None, upstreams=None):
    """A configuration; `functions` are the keys that say where the group `api` is run, and `upstreams` those of each."""
    text = f'bind = "127.0.0.1:{port}"\n'
    for upstream in upstreams or [{"name": "mock"}]:
        keys = {"base_url": f"http://127.0.0.1:{model}/v1", **upstream}
        text += "\n[[upstreams]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    if server_url:
        text += f'\n[servers.bench]\nurl = "{server_url}"\n'
    if functions:
        (folder / "api.json").write_text(json.dumps([ECHO]))
        text += '\n[functions.api]\ndefinitions = "api.json"\n'
        text += "".join(f'{key} = "{value}"\n' for key, value in functions.items())
    return text
