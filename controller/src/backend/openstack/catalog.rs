//! Finds the endpoints of a cloud's services in the catalog of Keystone's response to a login. All
//! endpoints must be in one region, since the volumes of one region do not exist in other regions.

use super::conf::CloudConf;
use belay_server::call::Failure;
use serde::Deserialize;
use std::collections::BTreeSet;

/// The service types of Cinder, the preferred one first.
const VOLUMES: &[&str] = &["block-storage", "volumev3", "block-store"];
/// The service type of Nova.
const COMPUTE: &[&str] = &["compute"];

#[derive(Debug, Deserialize)]
pub(super) struct Service {
    r#type: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    /// The newer name of the field `region`, with the same value.
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

impl Endpoint {
    fn region(&self) -> Option<&str> {
        let mut names = [&self.region, &self.region_id].into_iter().flatten();
        names.find(|name| !name.is_empty()).map(String::as_str)
    }
}

/// The endpoints of both services, without a trailing slash.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoints {
    pub(super) volumes: String,
    pub(super) compute: String,
    /// The region of the endpoints. `None` if the catalog does not contain the region.
    pub(super) region: Option<String>,
}

impl Endpoints {
    /// Finds the endpoints in the catalog.
    ///
    /// # Errors
    /// Returns `Precondition` if a service has no endpoint, or if there are several regions and
    /// `cloud.conf` does not name one of them.
    pub(super) fn find(catalog: &[Service], conf: &CloudConf) -> Result<Self, Failure> {
        let (volumes, compute) = (
            matches(catalog, VOLUMES, conf)?,
            matches(catalog, COMPUTE, conf)?,
        );
        let all = volumes.iter().chain(&compute);
        let regions: BTreeSet<_> = all.filter_map(|endpoint| endpoint.region()).collect();
        if regions.len() > 1 {
            let regions: Vec<_> = regions.into_iter().collect();
            return Err(Failure::precondition(format!(
                "the catalog of keystone has {} endpoints in the regions {}; set region in \
                 cloud.conf to that of the volumes",
                conf.interface,
                regions.join(", "),
            )));
        }
        let url = |found: &[&Endpoint]| {
            let first = found.first().map(|endpoint| endpoint.url.as_str());
            first.unwrap_or_default().trim_end_matches('/').to_owned()
        };
        Ok(Self {
            volumes: url(&volumes),
            compute: url(&compute),
            region: regions.first().map(|&region| region.to_owned()),
        })
    }
}

/// Returns the endpoints of all services of these types, in the order of `types`. Never returns an
/// empty list.
fn matches<'a>(
    catalog: &'a [Service],
    types: &[&str],
    conf: &CloudConf,
) -> Result<Vec<&'a Endpoint>, Failure> {
    let region = conf.region.as_deref();
    let of_type = |name| catalog.iter().filter(move |it| it.r#type == name);
    let services = types.iter().flat_map(|&name| of_type(name));
    let endpoints = services.flat_map(|service| &service.endpoints);
    let is_meant = |endpoint: &&Endpoint| {
        endpoint.interface == conf.interface
            && region.is_none_or(|region| endpoint.region() == Some(region))
    };
    let found: Vec<_> = endpoints.filter(is_meant).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    Err(Failure::precondition(format!(
        "the catalog of keystone has no {} endpoint of type {} in region {}; see \
         os-endpoint-type and region in cloud.conf",
        conf.interface,
        types.join(" or "),
        region.unwrap_or("any"),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn conf(region: Option<&str>) -> CloudConf {
        let region = region.map(|region| format!("region={region}\n"));
        let text = "[Global]\nauth-url=http://k\nusername=u\npassword=p\ntenant-name=t\n";
        CloudConf::parse(&(text.to_owned() + &region.unwrap_or_default())).unwrap()
    }

    /// Returns a service with one endpoint for each interface and region.
    fn service(kind: &str, name: &str, endpoints: &[(&str, Value)]) -> Value {
        let endpoint = |(interface, region): &(&str, Value)| {
            let url = format!(
                "http://{name}/{interface}/{}/",
                region.as_str().unwrap_or("-")
            );
            json!({"interface": interface, "region": region, "region_id": region, "url": url})
        };
        let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
        json!({"type": kind, "endpoints": endpoints})
    }

    fn find(catalog: &Value, region: Option<&str>) -> Result<Endpoints, Failure> {
        let catalog: Vec<Service> = serde_json::from_value(catalog.clone()).unwrap();
        Endpoints::find(&catalog, &conf(region))
    }

    fn found(catalog: &Value, region: Option<&str>) -> (String, String, Option<String>) {
        let found = find(catalog, region).unwrap();
        (found.volumes, found.compute, found.region)
    }

    #[test]
    fn one_region_needs_no_key_whatever_else_the_catalog_has() {
        let (one, none) = (json!("one"), Value::Null);
        let expected = |region: &str| {
            (
                format!("http://cinder/public/{region}"),
                format!("http://nova/public/{region}"),
            )
        };
        for (region, name) in [(&one, "one"), (&none, "-")] {
            let all = [
                ("internal", json!("one")),
                ("admin", json!("two")),
                ("public", region.clone()),
            ];
            let catalog = json!([
                service("identity", "keystone", &[("public", json!("two"))]),
                service("volumev2", "old", &[("public", json!("two"))]),
                service("volumev3", "other", &all),
                service("block-storage", "cinder", &all),
                service("compute", "nova", &all),
            ]);
            let (volumes, compute) = expected(name);
            let region = region.as_str().map(str::to_owned);
            assert_eq!(found(&catalog, None), (volumes, compute, region));
        }
        let mut old = json!([
            service("volumev3", "cinder", &[("public", one.clone())]),
            service("compute", "nova", &[("public", one)]),
        ]);
        for key in ["region_id", "region"] {
            let mut catalog = old.clone();
            for service in catalog.as_array_mut().unwrap() {
                let endpoint = service["endpoints"][0].as_object_mut().unwrap();
                endpoint.remove(key).unwrap();
            }
            let (volumes, compute) = expected("one");
            let region = Some("one".to_owned());
            let both = [found(&catalog, None), found(&catalog, Some("one"))];
            assert_eq!(
                both,
                [(); 2].map(|()| (volumes.clone(), compute.clone(), region.clone()))
            );
        }
        old.as_array_mut().unwrap().pop();
        let refused = find(&old, None).unwrap_err();
        assert!(
            refused
                .message
                .contains("no public endpoint of type compute"),
            "{refused}"
        );
    }

    #[test]
    fn of_several_regions_the_file_names_one_and_all_services_of_a_type_are_searched() {
        let (one, two) = (("public", json!("one")), ("public", json!("two")));
        let both = [one.clone(), two.clone()];
        for (name, services) in [
            (
                "endpoints",
                json!([
                    service("volumev3", "cinder", &both),
                    service("compute", "nova", &both)
                ]),
            ),
            (
                "services",
                json!([
                    service("volumev3", "cinder", &both[..1]),
                    service("volumev3", "cinder", &both[1..]),
                    service("compute", "nova", &both[..1]),
                    service("compute", "nova", &both[1..]),
                ]),
            ),
            (
                "types",
                json!([
                    service("volumev3", "cinder", &both[..1]),
                    service("block-storage", "cinder", &both[1..]),
                    service("compute", "nova", &both),
                ]),
            ),
        ] {
            let refused = find(&services, None).unwrap_err();
            for part in ["one, two", "set region in cloud.conf"] {
                assert!(refused.message.contains(part), "{name}: {refused}");
            }
            for region in ["one", "two"] {
                let expected = (
                    format!("http://cinder/public/{region}"),
                    format!("http://nova/public/{region}"),
                    Some(region.to_owned()),
                );
                assert_eq!(found(&services, Some(region)), expected, "{name}");
            }
            let refused = find(&services, Some("three")).unwrap_err();
            assert!(refused.message.contains("in region three"), "{refused}");
        }
        // Attachments to servers in another region would fail.
        let apart = json!([
            service("volumev3", "cinder", &[one]),
            service("compute", "nova", &[two])
        ]);
        let refused = find(&apart, None).unwrap_err();
        assert!(refused.message.contains("one, two"), "{refused}");
    }
}
