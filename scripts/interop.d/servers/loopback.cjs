// Loaded before a reference server: makes it listen on loopback only, and say on which port.

const { Server } = require('node:net');

const listen = Server.prototype.listen;

Server.prototype.listen = function (port, ...rest) {
  this.once('listening', () => console.log(`peer listens on http://127.0.0.1:${this.address().port}`));
  return listen.call(this, { port: Number(port), host: '127.0.0.1' }, ...rest);
};
