// A registered file chosen by name, with settings of its own: the C++ twin of ondevice/contract/choice.py.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/contract/failure.h"
#include "client/contract/messages/exact_fields.h"

namespace fedss {

// As in {"name": "uniform_negatives", "num_negatives": 80}.
struct Choice {
  std::string name;
  Json settings;  // an object of numbers and words
};

// Raises BadFile for what is none.
Choice choice_from_document(const Json&);

// Name -> what makes a member from its settings, in the order of the Python registry.
template <class Member>
using Registry = std::vector<std::pair<const char*, std::unique_ptr<Member> (*)(Fields& settings)>>;

// The member, made with its settings.  A client that is older than the plan says what it lacks, by name.
template <class Member>
std::unique_ptr<Member> chosen(const Registry<Member>& registry, const Choice& choice, const std::string& what) {
  std::string known;
  for (const auto& [name, make] : registry) {
    known += (known.empty() ? "" : ", ") + std::string(name);
    if (name != choice.name) continue;
    Fields settings(choice.settings, what + " '" + choice.name + "'");
    std::unique_ptr<Member> member = make(settings);
    settings.expect_no_more();
    return member;
  }
  throw BadFile(
      "there is no " + what + " '" + choice.name + "' in this client, only " + known +
      "; this client is older than the plan: push a new bundle");
}

}  // namespace fedss
