#include "client/contract/choice.h"

namespace fedss {

Choice choice_from_document(const Json& document) {
  if (!document.is_object() || !document.contains("name") || !document["name"].is_string())
    throw BadFile(document.dump() + " is no choice; expected a name, and settings beside it");
  Choice choice{document["name"], Json::object()};
  for (const auto& [key, value] : document.items()) {
    if (key == "name") continue;
    if (!value.is_string() && !value.is_number() && !value.is_boolean())
      throw BadFile(choice.name + ": " + key + " is " + value.dump() + "; expected a number or a word");
    choice.settings[key] = value;
  }
  return choice;
}

}  // namespace fedss
