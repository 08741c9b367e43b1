"""A webhook behind functions, with nothing but Python: `tool_calls` in, `tool_responses` out."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INVOICES = {"4711": [{"invoice": "R-1", "amount": 120.5}, {"invoice": "R-2", "amount": 80}]}


def open_invoices(customer):
    if customer not in INVOICES:
        raise KeyError(f"there is no customer {customer}")
    return {"invoices": INVOICES[customer]}


def send_reminder(invoice):
    return f"A reminder of {invoice} is on its way."


FUNCTIONS = {"open_invoices": open_invoices, "send_reminder": send_reminder}


def answer(call):
    try:
        function = FUNCTIONS[call["function"]["name"]]
        output = function(**json.loads(call["function"]["arguments"]))
        return {"tool_call_id": call["id"], "output": output}
    except Exception as error:
        return {"tool_call_id": call["id"], "error": str(error.args[0] if error.args else error)}


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"tool_responses": [answer(call) for call in request["tool_calls"]]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Webhook).serve_forever()
