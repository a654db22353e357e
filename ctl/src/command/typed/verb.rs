//! A typed command as data: its method, the flags that set the fields of the request, and the
//! display of the response.

use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _, value_parser};
use serde_json::{Value, json};

use super::view::View;
use crate::context::{Contexts, VolumeContext};
use crate::failure::Failure;
use crate::flags::{Access, Pair, map, pair};
use crate::secrets::Secrets;
use crate::size;

/// A typed command.
pub(crate) struct Verb {
    pub(super) name: &'static str,
    alias: Option<&'static str>,
    /// The name of the method, which is unique among the services of CSI.
    pub(super) method: &'static str,
    /// The first sentence of the help, to which the method's name is appended.
    about: &'static str,
    /// The flags in the order of the help; flags with a heading are last.
    flags: &'static [Flag],
    pub(super) view: View,
}

/// A flag, or a group of flags, and the fields of the request that it sets. A path to a field
/// consists of field names, separated by slashes; `0` is the first element of a list.
pub(super) enum Flag {
    /// A required argument. Contains the path of the request field, the placeholder of the argument
    /// in the help, and the help text.
    Word(&'static str, &'static str, &'static str),
    /// An option.
    Option(Setting),
    /// The flags for a volume capability, which has a default. Contains the path of the field.
    Capability(&'static str),
    /// The flags for a volume capability, which is omitted if none of the flags is given. Contains
    /// the path of the field.
    OptionalCapability(&'static str),
    /// The flags for the volume context.
    VolumeContext,
    /// The flags for the volume context and the publish context.
    Contexts,
    /// The flags for secrets.
    Secrets,
}

/// An option, with its long name.
pub(super) struct Setting {
    name: &'static str,
    value: Kind,
    fields: &'static [&'static str],
    help: &'static str,
    is_required: bool,
    /// The name of an option that cannot be combined with this option; empty if there is none.
    conflicts: &'static str,
}

/// The kind of an option's value.
pub(super) enum Kind {
    /// Any text, with its placeholder in the help.
    Text(&'static str),
    /// A size in bytes, with an optional unit.
    Size,
    /// A non-negative number.
    Count,
    /// `KEY=VALUE` pairs; the option may be repeated.
    Pairs,
    /// No value: the option sets the field to true.
    Switch,
}

/// Creates an optional option.
pub(super) const fn option(
    name: &'static str,
    value: Kind,
    fields: &'static [&'static str],
    help: &'static str,
) -> Setting {
    Setting {
        name,
        value,
        fields,
        help,
        is_required: false,
        conflicts: "",
    }
}

/// Creates a verb without an alias.
pub(super) const fn verb(
    name: &'static str,
    method: &'static str,
    about: &'static str,
    flags: &'static [Flag],
    view: View,
) -> Verb {
    Verb {
        name,
        alias: None,
        method,
        about,
        flags,
        view,
    }
}

impl Setting {
    /// Returns an optional flag that sets these fields of the request.
    pub(super) const fn optional(self) -> Flag {
        Flag::Option(self)
    }

    /// Returns a required flag that sets these fields of the request.
    pub(super) const fn required(mut self) -> Flag {
        self.is_required = true;
        Flag::Option(self)
    }

    /// Returns a flag that cannot be combined with the option `other`.
    pub(super) const fn without(mut self, other: &'static str) -> Flag {
        self.conflicts = other;
        Flag::Option(self)
    }

    fn arg(&self) -> Arg {
        let mut arg = Arg::new(self.name)
            .long(self.name)
            .help(self.help)
            .required(self.is_required);
        if !self.conflicts.is_empty() {
            arg = arg.conflicts_with(self.conflicts);
        }
        match self.value {
            Kind::Text(value) => arg.value_name(value),
            // Accept a leading hyphen, so that a negative size gets an error about the size.
            Kind::Size => arg
                .value_name("SIZE")
                .value_parser(size::parse)
                .allow_hyphen_values(true),
            Kind::Count => arg
                .value_name("COUNT")
                .value_parser(value_parser!(i32).range(0..)),
            Kind::Pairs => arg
                .value_name("KEY=VALUE")
                .value_parser(pair)
                .action(ArgAction::Append),
            Kind::Switch => arg.action(ArgAction::SetTrue),
        }
    }

    /// Returns the value that the option sets in the request; `None` if the option is not given.
    fn value(&self, matches: &ArgMatches) -> Option<Value> {
        match self.value {
            Kind::Text(_) => matches.get_one::<String>(self.name).map(|it| json!(it)),
            Kind::Size => matches.get_one::<i64>(self.name).map(|it| json!(it)),
            Kind::Count => matches.get_one::<i32>(self.name).map(|it| json!(it)),
            Kind::Pairs => {
                let pairs = matches.get_many::<Pair>(self.name);
                pairs.map(|pairs| json!(map(pairs.cloned())))
            }
            Kind::Switch => matches.get_flag(self.name).then_some(json!(true)),
        }
    }
}

impl Flag {
    fn add_to(&self, command: Command) -> Command {
        match self {
            Self::Word(field, value, help) => command.arg(
                Arg::new(*field)
                    .value_name(*value)
                    .help(*help)
                    .required(true),
            ),
            Self::Option(option) => command.arg(option.arg()),
            Self::Capability(_) | Self::OptionalCapability(_) => Access::augment_args(command),
            Self::VolumeContext => VolumeContext::augment_args(command),
            Self::Contexts => Contexts::augment_args(command),
            Self::Secrets => Secrets::augment_args(command),
        }
    }

    fn fill_in(&self, matches: &ArgMatches, request: &mut Value) -> Result<(), Failure> {
        let usage = |error: clap::Error| Failure::Usage(error.to_string());
        match self {
            Self::Word(field, ..) => {
                let word = matches.get_one::<String>(field);
                set(request, field, json!(word));
            }
            Self::Option(option) => {
                if let Some(value) = option.value(matches) {
                    let fields = option.fields.iter();
                    fields.for_each(|field| set(request, field, value.clone()));
                }
            }
            Self::Capability(field) => {
                let access = Access::from_arg_matches(matches).map_err(usage)?;
                set(request, field, access.capability());
            }
            Self::OptionalCapability(field) => {
                let access = Access::from_arg_matches(matches).map_err(usage)?;
                if access.is_given() {
                    set(request, field, access.capability());
                }
            }
            Self::VolumeContext => {
                let context = VolumeContext::from_arg_matches(matches).map_err(usage)?;
                set(request, "volume_context", json!(context.load()?));
            }
            Self::Contexts => {
                let contexts = Contexts::from_arg_matches(matches).map_err(usage)?;
                let contexts = contexts.load()?;
                set(request, "volume_context", json!(contexts.volume));
                set(request, "publish_context", json!(contexts.publish));
            }
            Self::Secrets => {
                let secrets = Secrets::from_arg_matches(matches).map_err(usage)?;
                set(request, "secrets", json!(secrets.load()?));
            }
        }
        Ok(())
    }
}

impl Verb {
    /// Adds an alias.
    pub(super) const fn also(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    /// Returns the clap command of the verb, with the given name. The alias is added only to the
    /// verb's own name, since groups may rename a verb.
    pub(super) fn command(&self, name: &'static str) -> Command {
        let flags = self.flags.iter();
        let command = Command::new(name);
        let command = flags.fold(command, |command, flag| flag.add_to(command));
        // Override the descriptions of the command, which clap has copied from the groups of flags.
        command
            .about(format!("{} ({})", self.about, self.method))
            .long_about(None)
            .visible_aliases(self.alias.filter(|_| name == self.name))
    }

    /// Returns the request that the flags describe.
    ///
    /// # Errors
    /// Fails if a file or environment variable that a flag names cannot be read.
    pub(super) fn request(&self, matches: &ArgMatches) -> Result<Value, Failure> {
        let mut request = json!({});
        for flag in self.flags {
            flag.fill_in(matches, &mut request)?;
        }
        Ok(request)
    }
}

/// Sets the field of a request at a path. Creates missing messages and lists on the path.
fn set(request: &mut Value, path: &str, value: Value) {
    let mut at = request;
    for part in path.split('/') {
        at = match part {
            "0" => {
                if at.is_null() {
                    *at = json!([null]);
                }
                &mut at[0]
            }
            name => &mut at[name],
        };
    }
    *at = value;
}
