#pragma once

#include <functional>
#include <string>

#include "core/base/error.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// The sentence with the place of the key that it begins with: "[target] layout.tp = 3: …" becomes
/// "job.toml:7:14: [target] layout.tp = 3: …". Others, and those about keys that the job does not
/// name, stay as they are.
std::string at_its_key(JobSpec const& job, std::string sentence);
Error at_its_key(JobSpec const& job, Error const& error);

/// Does `work`; the Errors that it throws name the place of their key.
void with_key_places(JobSpec const& job, std::function<void()> const& work);

}  // namespace reshard
