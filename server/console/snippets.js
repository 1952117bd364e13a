// Snippets to copy that send the request of the form. Each takes the token from the variable TOKEN.

export function curl(url, body, needsToken) {
  const token = needsToken ? ` \\\n    -H "Authorization: Bearer $TOKEN"` : "";
  return `curl -s ${url}${token} -d '${body}'\n`;
}

export function python(url, body, needsToken) {
  const token = needsToken ? ', headers={"Authorization": "Bearer " + os.environ["TOKEN"]}' : "";
  return `import json
${needsToken ? "import os\n" : ""}import urllib.request

body = b"""${body}"""
request = urllib.request.Request("${url}", data=body${token})
with urllib.request.urlopen(request) as reply:
    for output in json.load(reply)["outputs"]:
        print(output["name"], output["shape"], output["data"])
`;
}

function literal(text) {
  return text.split("\n").map((line, i, all) =>
    `"${line.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}${i < all.length - 1 ? "\\n" : ""}"`).join("\n        ");
}

const C_TOKEN = `    char token[600];
    snprintf(token, sizeof token, "Authorization: Bearer %s", getenv("TOKEN") ? getenv("TOKEN") : "");
    struct curl_slist *headers = curl_slist_append(NULL, token);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
`;

export function c(url, body, needsToken) {
  return `/* cc ask.c -lcurl -o ask && ./ask */
#include <curl/curl.h>
#include <stdio.h>
${needsToken ? "#include <stdlib.h>\n" : ""}
int main(void)
{
    static const char body[] =
        ${literal(body)};
    CURL *curl = curl_easy_init();
    if (!curl)
        return 1;
    curl_easy_setopt(curl, CURLOPT_URL, "${url}");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
${needsToken ? C_TOKEN : ""}    CURLcode code = curl_easy_perform(curl); /* prints the answer */
    if (code != CURLE_OK)
        fprintf(stderr, "%s\\n", curl_easy_strerror(code));
${needsToken ? "    curl_slist_free_all(headers);\n" : ""}    curl_easy_cleanup(curl);
    return code != CURLE_OK;
}
`;
}
