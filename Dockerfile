# The demo API of `npm start`, installed as a user of the package would install it.
FROM node:20.19-slim AS build
WORKDIR /src
COPY package.json package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json tsconfig.examples.json LICENSE README.md ./
COPY src src
COPY examples examples
RUN npm run build && npx tsc -p tsconfig.examples.json && npm pack --ignore-scripts --pack-destination /tmp
WORKDIR /app
# The drivers in the versions that the tests ran with.
RUN npm init -y >/dev/null && npm pkg set type=module \
  && npm install --no-audit --no-fund /tmp/fastify-idempotency-*.tgz $(node -p " \
    const { packages } = JSON.parse(fs.readFileSync('/src/package-lock.json')); \
    ['fastify', 'ioredis', 'prom-client', '@aws-sdk/client-dynamodb'] \
      .map((name) => name + '@' + packages['node_modules/' + name].version).join(' ')") \
  && cp -r /src/examples/dist dist

FROM node:20.19-alpine
WORKDIR /app
COPY --from=build /app ./
USER node
ENV NODE_ENV=production HOST=0.0.0.0 PORT=3000
EXPOSE 3000
HEALTHCHECK --interval=5s --timeout=2s --start-period=5s --retries=3 \
  CMD ["wget", "-q", "--spider", "http://127.0.0.1:3000/healthz"]
CMD ["node", "dist/server.js"]
