"""A program behind functions: arguments as JSON on stdin, the result as JSON on stdout."""
import json
import os
import shutil
import sys

arguments = json.load(sys.stdin)
match os.environ["TOOLWAY_FUNCTION"]:
    case "disk":
        try:
            print(json.dumps(shutil.disk_usage(arguments["path"])._asdict()))
        except OSError as error:
            sys.exit(f"{arguments['path']}: {error.strerror}")
    case "load":
        print(json.dumps({"load": os.getloadavg()}))
