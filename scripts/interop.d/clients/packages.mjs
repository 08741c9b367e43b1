// Preloaded with `node --import`: packages are found in the folder that the installer made, not beside the program.

import { registerHooks } from 'node:module';
import { pathToFileURL } from 'node:url';

const parentURL = pathToFileURL(`${process.env.INTEROP_NPM}/package.json`).href;
const isPackage = (name) => !/^(\.|\/|node:|file:|data:)/.test(name);

registerHooks({
  resolve(name, context, next) {
    const isOurs = isPackage(name) && !context.parentURL?.includes('/node_modules/');
    return next(name, isOurs ? { ...context, parentURL } : context);
  },
});
