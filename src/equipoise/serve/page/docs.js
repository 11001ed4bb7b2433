// Shows the OpenAPI description: a section for each route. Text is never markup.
const createElement = (name, text, ...children) => {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  element.append(...children);
  return element;
};

function resolve(description, schema) {
  if (!schema) return {};
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").pop()] || {} : schema;
}

function typeName(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  if (schema.enum || schema.const) return (schema.enum || [schema.const]).map((value) => JSON.stringify(value)).join(" or ");
  return schema.type || "anything";
}

function fields(description, schema) {
  const object = resolve(description, schema);
  const required = new Set(object.required || []);
  return Object.entries(object.properties || {}).map(([name, field]) =>
    createElement("li", null, createElement("code", name), ` ${typeName(field)}${required.has(name) ? "" : ", optional"}${field.description ? ": " + field.description : ""}`));
}

const description = await (await fetch("openapi.json")).json();
const main = document.getElementById("docs");
main.append(createElement("p", description.info.description));
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const section = createElement("section", null, createElement("h2", null, createElement("code", `${method.toUpperCase()} ${path}`)), createElement("p", route.description));
    const inputs = (route.parameters || []).map((parameter) =>
      createElement("li", null, createElement("code", parameter.name), ` ${typeName(parameter.schema)}, in the ${parameter.in}${parameter.required ? "" : ", optional"}`));
    const bodies = route.requestBody ? route.requestBody.content : {};
    const body = (bodies["application/json"] || Object.values(bodies)[0] || {}).schema;
    if (body) inputs.push(...fields(description, body));
    if (inputs.length) section.append(createElement("h3", "Parameters"), createElement("ul", null, ...inputs));
    const response = route.responses["200"] && route.responses["200"].content && route.responses["200"].content["application/json"];
    const outputs = response ? fields(description, response.schema) : [];
    if (outputs.length) section.append(createElement("h3", "Response"), createElement("ul", null, ...outputs));
    section.append(createElement("p", `Errors: ${Object.keys(route.responses).filter((code) => code >= "400").join(", ")}`));
    main.append(section);
  }
}
