"""The webhook behind the functions: takes OpenAI `tool_calls`, gives `tool_responses`. Standard library only."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What toolway reads as the functions' definitions, in the form of OpenAI's `tools`.
DEFINITIONS = [
    {
        "type": "function",
        "function": {
            "name": "shout",
            "description": "The text in capitals, with an exclamation mark.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
]


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        responses = [
            {"tool_call_id": call["id"], "output": {"text": json.loads(call["function"]["arguments"])["text"].upper() + "!"}}
            for call in asked["tool_calls"]
        ]
        body = json.dumps({"tool_responses": responses}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    print(f"webhook listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
