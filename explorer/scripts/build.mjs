// Writes vega.js and the licenses of the packages in it; run by `make web-scripts`.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const folder = new URL("../../trainer/diode_trainer/report/static/vega/", import.meta.url).pathname;
const { dependencies } = JSON.parse(readFileSync("package.json"));
const versions = Object.entries(dependencies).map(([name, version]) => `${name} ${version}`).join(", ");

const { metafile } = await build({
  entryPoints: ["vega.mjs"],
  bundle: true,
  minify: true,
  format: "iife", // a report holds this script in its page, where a module could not be imported
  globalName: "vega",
  footer: { js: "globalThis.vega = vega;" },
  target: "es2022",
  legalComments: "none",
  metafile: true,
  banner: { js: `// ${versions}. See LICENSES.txt; made by make web-scripts.` },
  outfile: `${folder}vega.js`,
});

const packages = new Set(
  Object.keys(metafile.inputs).map((path) => path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean),
);
const licenses = [...packages].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  return `${name} ${version} (${license})\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`;
});
writeFileSync(`${folder}LICENSES.txt`, licenses.join(`\n${"-".repeat(80)}\n\n`));
